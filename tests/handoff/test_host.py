"""Host leases: whose memory the engine sees, and what happens when it is done."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref

import pytest
import torch

from mccl.engine import EngineBroken, Status
from mccl.errors import UsageError
from mccl.handoff import HostHandoff, WaitTimeout

from .fakes import FakeEngine

pytestmark = pytest.mark.timeout(60)


def memory(pointer: int, like: torch.Tensor) -> torch.Tensor:
    """The contiguous memory at ``pointer``, as the engine would see it."""
    raw = (ctypes.c_char * (like.numel() * like.element_size())).from_address(pointer)
    return torch.frombuffer(raw, dtype=like.dtype).view(like.shape)


def test_contiguous_tensors_are_lent_in_place(engine: FakeEngine) -> None:
    base = torch.arange(20.0)
    view = base[5:15]
    out = torch.empty(3)
    lease = HostHandoff(engine.queue).lease([view], [view, out])
    assert lease.pointers == (base.data_ptr() + 20, base.data_ptr() + 20, out.data_ptr())
    assert lease.gate is None


@pytest.mark.parametrize(
    "view",
    [
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(24.0)[::2],
        torch.arange(32.0).view(2, 2, 2, 4).to(memory_format=torch.channels_last),
        torch.complex(torch.arange(4.0), torch.arange(4.0)).conj(),
        torch.complex(torch.arange(4.0), torch.arange(4.0)).conj().imag,
    ],
    ids=["transposed", "strided", "channels_last", "conj", "neg"],
)
def test_other_layouts_go_through_a_packed_copy(engine: FakeEngine, view: torch.Tensor) -> None:
    expected = view.clone() * 3
    lease = HostHandoff(engine.queue).lease([view], [view])
    assert lease.pointers[0] == lease.pointers[1] != view.data_ptr()
    packed = memory(lease.pointers[0], view.clone(memory_format=torch.contiguous_format))
    assert torch.equal(packed, view)
    packed.mul_(3)
    assert not torch.equal(view, expected), "results must not show before the wait"
    op = engine.operation()
    lease.issued(op)
    op.finish()
    lease.wait()
    assert torch.equal(view, expected)


def test_results_are_copied_back_once(engine: FakeEngine) -> None:
    view = torch.zeros(4, 4)[:, ::2]
    lease = HostHandoff(engine.queue).lease([], [view])
    memory(lease.pointers[0], torch.empty(4, 2)).fill_(7)
    op = engine.operation()
    lease.issued(op)
    future = lease.future([view])
    op.finish()
    future.wait()
    assert (view == 7).all()
    view.fill_(1)
    lease.wait()
    lease.wait()
    assert (view == 1).all(), "a second wait brought the old result back"


def test_a_failed_operation_copies_nothing_back(engine: FakeEngine) -> None:
    view = torch.zeros(4, 4)[:, ::2]
    lease = HostHandoff(engine.queue).lease([view], [view])
    memory(lease.pointers[0], torch.empty(4, 2)).fill_(7)
    op = engine.operation()
    lease.issued(op)
    op.finish(Status.BROKEN)
    for _ in range(2):
        with pytest.raises(EngineBroken):
            lease.wait()
    assert (view == 0).all()
    assert lease.is_completed()


def test_wait_has_its_own_limit(engine: FakeEngine) -> None:
    tensor = torch.zeros(2)
    lease = HostHandoff(engine.queue).lease([tensor], [tensor])
    op = engine.operation()
    lease.issued(op)
    with pytest.raises(WaitTimeout):
        lease.wait(1000)
    assert not lease.is_completed()
    op.finish()
    lease.wait(1000)
    assert lease.is_completed()


def test_futures_complete_without_a_wait(engine: FakeEngine) -> None:
    tensor = torch.zeros(2)
    lease = HostHandoff(engine.queue).lease([tensor], [tensor])
    op = engine.operation()
    lease.issued(op)
    early = lease.future([tensor])
    assert not early.done()
    op.finish()
    assert early.wait()[0] is tensor
    assert lease.future([tensor]).done()
    assert engine.queue.watched() == 0


def test_a_future_carries_the_translated_failure(engine: FakeEngine) -> None:
    tensor = torch.zeros(2)
    handoff = HostHandoff(engine.queue)
    lease = handoff.lease([tensor], [tensor], translate=lambda e: UsageError("rank 3 died"))
    op = engine.operation()
    lease.issued(op)
    future = lease.future([tensor])
    op.finish(Status.BROKEN)
    with pytest.raises(UsageError, match="rank 3 died"):
        future.wait()


def test_backward_raises_the_failure_with_its_type(engine: FakeEngine) -> None:
    handoff = HostHandoff(engine.queue)
    ops = []

    def hook(grad: torch.Tensor) -> None:
        lease = handoff.lease([grad], [grad], translate=lambda e: UsageError("rank 3 died"))
        ops.append(engine.operation())
        lease.issued(ops[-1])
        lease.future([grad])
        ops[-1].finish(Status.BROKEN)

    x = torch.ones(3, requires_grad=True)
    x.register_hook(hook)
    with pytest.raises(UsageError, match="rank 3 died"):
        (x * 2).sum().backward()
    assert ops


def test_dropped_leases_hold_their_tensors_until_the_engine_is_done(engine: FakeEngine) -> None:
    tensor = torch.zeros(2)
    alive = weakref.ref(tensor)
    lease = HostHandoff(engine.queue).lease([tensor], [tensor])
    op = engine.operation()
    lease.issued(op)
    del lease, tensor
    gc.collect()
    assert alive() is not None, "B1: released while the engine may write"
    gone = threading.Event()
    weakref.finalize(alive(), gone.set)
    op.finish()
    assert gone.wait(30)


def test_synchronous_calls_need_no_operation(engine: FakeEngine) -> None:
    view = torch.zeros(4)[::2]
    lease = HostHandoff(engine.queue).lease([view], [view])
    memory(lease.pointers[0], torch.empty(2)).fill_(5)
    lease.issued(None)
    assert (view == 5).all()
    lease.wait()
    assert lease.is_completed()


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ([torch.zeros(2, device="meta")], [], "input 0 is on meta"),
        ([torch.eye(2).to_sparse()], [], "to_dense"),
        ([], [torch.zeros(1).expand(3)], "overlaps itself"),
    ],
)
def test_what_cannot_be_lent_is_refused(
    engine: FakeEngine, inputs: list[torch.Tensor], outputs: list[torch.Tensor], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        HostHandoff(engine.queue).lease(inputs, outputs)
