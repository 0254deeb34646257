"""The CUDA lease's logic over streams made of threads: order, pieces, receives, failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from mccl.engine import EngineBroken, Status
from mccl.handoff.cuda import StreamHandoff, StreamLease

from .fake_streams import FakeStreams
from .fakes import FakeEngine
from .pair import Pair, socket_pairs

pytestmark = pytest.mark.timeout(120)


class Device:
    """One rank: fake streams, the shipped handoff, a communicator of two."""

    def __init__(self, rank: int, fds: list[int], seed: int, **options: Any) -> None:
        self.rank = rank
        self.streams = FakeStreams(seed * 2 + rank)
        self.handoff = StreamHandoff(self.streams, piece_bytes=1024, **options)
        self.pair = Pair(rank, fds)

    def kernel(self, work: Callable[[], Any]) -> None:
        self.streams.compute.give(work)

    def issue(self, tensor: torch.Tensor) -> StreamLease:
        lease = self.handoff.lease([tensor], [tensor])
        lease.issued(self.pair.all_reduce(lease, tensor.numel()))
        return lease

    def close(self) -> None:
        self.streams.synchronize(self.streams.compute)
        self.pair.settle()
        self.pair.close()
        self.streams.close()


@pytest.fixture
def devices(request: pytest.FixtureRequest) -> Iterator[list[Device]]:
    ends = socket_pairs()
    options = getattr(request, "param", {})
    fds = [[end.detach() for end in side] for side in ends]
    devices = [Device(rank, fds[rank], seed=7, **options) for rank in (0, 1)]
    yield devices
    for device in devices:
        device.close()


def on_both(devices: list[Device], work: Callable[[Device], None]) -> None:
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, device) for device in devices]:
            done.result(timeout=100)


@pytest.mark.parametrize(
    "devices", [{}, {"event_sync": False}], ids=["tickets", "host"], indirect=True
)
def test_bursts_are_exact(devices: list[Device]) -> None:
    """Sizes below, at and above a piece; views; results read by later kernels."""
    sizes = (1, 255, 256, 257, 1024, 3000)

    def burst(device: Device) -> None:
        flight: list[tuple[StreamLease, torch.Tensor, int]] = []
        wrong: list[int] = []

        def read(tensor: torch.Tensor, k: int) -> None:
            if not bool((tensor == 3.0 * k).all()):
                wrong.append(k)

        for k in range(1, 121):
            n = sizes[k % len(sizes)]
            tensor = torch.zeros(n, 2)[:, 1] if k % 5 == 0 else torch.zeros(n + 8)[4 : 4 + n]
            value = float((device.rank + 1) * k)
            device.kernel(lambda t=tensor, v=value: t.fill_(v))
            flight.append((device.issue(tensor), tensor, k))
            if len(flight) > 16:
                lease, tensor, done = flight.pop(k % 3)
                lease.future([tensor]) if k % 2 else lease.wait()
                device.kernel(lambda t=tensor, d=done: read(t, d))
        for lease, tensor, done in flight:
            lease.wait()
            device.kernel(lambda t=tensor, d=done: read(t, d))
        device.streams.synchronize(device.streams.compute)
        assert not wrong

    on_both(devices, burst)


def test_late_messages_hold_nothing_back(engine: FakeEngine) -> None:
    streams = FakeStreams(1)
    handoff = StreamHandoff(streams, completion=engine.queue)
    got, sent, reduced = torch.zeros(4), torch.zeros(4), torch.ones(4)
    send = handoff.lease([sent], [])
    send_op = engine.operation()
    send.issued(send_op)
    send.wait()
    receive = handoff.lease([], [got])
    receive_op = engine.operation()
    receive.issued(receive_op)
    lease = handoff.lease([reduced], [reduced])
    op = engine.operation()
    lease.issued(op)
    finish(lease, op)
    lease.wait()
    streams.synchronize(streams.compute)
    assert lease.is_completed()
    assert not receive.is_completed()
    assert not send.is_completed()
    finish(send, send_op)
    assert send.is_completed()
    finish(receive, receive_op)
    receive.wait()
    streams.synchronize(streams.compute)
    streams.close()


def finish(lease: StreamLease, op: Any) -> None:
    """What the engine does at the end: raise the consumed word, complete the operation."""
    assert lease._consumed is not None
    word, value = lease._consumed
    word.raise_to(value)
    op.finish()


def test_failure_raises_and_frees_the_streams(engine: FakeEngine) -> None:
    streams = FakeStreams(2)
    handoff = StreamHandoff(streams, completion=engine.queue)
    tensor = torch.ones(4)
    lease = handoff.lease([tensor], [tensor])
    op = engine.operation()
    lease.issued(op)
    op.finish(Status.BROKEN)
    with pytest.raises(EngineBroken):
        lease.wait()
    streams.synchronize(streams.compute)  # would hang if the ticket stayed low
    with pytest.raises(EngineBroken):
        lease.future([tensor]).wait()
    assert handoff.lanes.in_use() == 0
    streams.close()


def test_a_pinned_buffer_is_not_reused_while_it_is_copied_out(engine: FakeEngine) -> None:
    streams = FakeStreams(3)
    handoff = StreamHandoff(streams, completion=engine.queue)
    stop = threading.Event()
    handoff.out_stream.give(lambda: stop.wait(60))
    tensor = torch.ones(4)
    lease = handoff.lease([tensor], [tensor])
    first = lease.pointers
    op = engine.operation()
    lease.issued(op)
    finish(lease, op)
    lease.is_completed()
    again = handoff.lease([tensor], [tensor])
    assert again.pointers != first
    stop.set()
    streams.synchronize(handoff.out_stream)
    del lease
    third = handoff.lease([tensor], [tensor])
    assert third.pointers == first
    streams.close()
