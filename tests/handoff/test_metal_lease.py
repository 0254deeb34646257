"""Metal leases over the stand-in, one call at a time: failure, ownership, abandonment."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from mccl.engine import EngineBroken, Status, native_library
from mccl.errors import UsageError
from mccl.handoff.metal import MetalHandoff
from mccl.handoff.metal_bridge import MetalBridge

from .fakes import FakeEngine
from .standin import Standin, StandinMemory, build

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the stand-in replaces Metal on Linux"),
    pytest.mark.timeout(60),
]


@pytest.fixture
def standin() -> Standin:
    standin = Standin(build())
    standin.c_own_stream(0)
    standin.c_reset(1, 0)
    return standin


@pytest.fixture
def handoff(standin: Standin, engine: FakeEngine) -> Iterator[MetalHandoff]:
    bridge = MetalBridge(native_library(), None)
    handoff = MetalHandoff(bridge, StandinMemory(standin, bridge), completion=engine.queue)
    yield handoff
    standin.c_synchronize()
    handoff.close()


def memory(handoff: MetalHandoff) -> StandinMemory:
    assert isinstance(handoff.memory, StandinMemory)
    return handoff.memory


def test_the_bridge_names_the_device(handoff: MetalHandoff) -> None:
    assert handoff.bridge.device_name == "stand-in GPU"


def test_a_failure_raises_and_does_not_hang_the_gpu(
    handoff: MetalHandoff, standin: Standin, engine: FakeEngine
) -> None:
    tensor = memory(handoff).empty(8)
    lease = handoff.lease([tensor], [tensor], translate=lambda e: UsageError("rank 1 died"))
    op = engine.operation()
    lease.issued(op)
    lease.wait()  # not known yet
    op.finish(Status.BROKEN)
    standin.c_synchronize()  # would abort after 30 s if the ticket stayed low
    assert lease.is_completed()
    assert isinstance(lease.failure(), EngineBroken)
    with pytest.raises(EngineBroken):
        lease.wait()
    with pytest.raises(UsageError, match="rank 1 died"):
        lease.future([tensor]).wait()
    assert handoff.lanes.in_use() == 0


def test_backward_raises_a_failure_that_is_known(handoff: MetalHandoff, engine: FakeEngine) -> None:
    tensor = memory(handoff).empty(8)

    def hook(grad: torch.Tensor) -> None:
        lease = handoff.lease([tensor], [tensor], translate=lambda e: UsageError("rank 1 died"))
        op = engine.operation()
        lease.issued(op)
        lease.future([tensor])
        op.finish(Status.BROKEN)

    x = torch.ones(1, requires_grad=True)
    x.register_hook(hook)
    with pytest.raises(UsageError, match="rank 1 died"):
        (x * 2).sum().backward()


def test_a_second_thread_is_refused(handoff: MetalHandoff, engine: FakeEngine) -> None:
    tensor = memory(handoff).empty(8)
    lease = handoff.lease([tensor], [tensor])
    op = engine.operation()
    lease.issued(op)
    refused: list[BaseException] = []

    def intrude() -> None:
        for attempt in (lease.wait, lambda: handoff.lease([tensor], [])):
            try:
                attempt()
            except UsageError as error:
                refused.append(error)

    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()
    assert len(refused) == 2
    op.finish()
    lease.wait()


def test_a_call_that_was_refused_gives_everything_back(handoff: MetalHandoff) -> None:
    tensor = memory(handoff).empty(8, private=True)
    lease = handoff.lease([tensor], [tensor])
    assert handoff.lanes.in_use() == 1
    del lease  # submit raised: the lease was never issued
    gc.collect()
    assert handoff.lanes.in_use() == 0
    again = handoff.lease([tensor], [tensor])
    assert len(handoff.staging.drain()) == 1, "the staging buffer was not reused"
    del again


def test_an_abandoned_lease_holds_until_the_engine_is_done(
    handoff: MetalHandoff, engine: FakeEngine
) -> None:
    tensor = memory(handoff).empty(8)
    address = tensor.data_ptr()
    lease = handoff.lease([tensor], [tensor])
    op = engine.operation()
    lease.issued(op)
    del lease, tensor
    gc.collect()
    assert memory(handoff).empty(8).data_ptr() != address, "B1: reused while the engine writes"
    op.finish()
    deadline = threading.Event()
    while engine.queue.watched():
        deadline.wait(0.001)
    gc.collect()
    seen = [memory(handoff).empty(8) for _ in range(2)]
    assert address in {t.data_ptr() for t in seen}


def test_empty_tensors_need_no_memory(handoff: MetalHandoff) -> None:
    lease = handoff.lease([torch.empty(0)], [torch.empty(0)])
    assert lease.pointers == (0, 0)
    lease.issued(None)
    lease.wait()


def test_no_metal_here_says_so() -> None:
    # In a process without the stand-in, as on any machine that is not a Mac.
    code = (
        "from mccl.engine import native_library\n"
        "from mccl.handoff.metal_bridge import MetalBridge\n"
        "try: MetalBridge(native_library(), None)\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert "symbol objc_msgSend was found neither" in done.stdout, done.stderr
