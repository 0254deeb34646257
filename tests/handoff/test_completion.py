"""The completion thread: no lost wake-ups, no life in a forked child, a quiet end."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from mccl.handoff import HostHandoff

from .fakes import FakeEngine

pytestmark = pytest.mark.timeout(120)


def test_no_completion_is_lost(engine: FakeEngine) -> None:
    handoff = HostHandoff(engine.queue)
    futures = []
    work = [engine.operation() for _ in range(2000)]
    finisher = threading.Thread(target=lambda: [op.finish() for op in work])
    finisher.start()
    for op in work:
        tensor = torch.zeros(1)
        lease = handoff.lease([tensor], [tensor])
        lease.issued(op)
        futures.append(lease.future(tensor))
    finisher.join()
    torch.futures.wait_all(futures)
    assert engine.queue.watched() == 0


def test_callbacks_may_wait_and_issue(engine: FakeEngine) -> None:
    handoff = HostHandoff(engine.queue)
    tensor = torch.zeros(1)
    first, second = handoff.lease([tensor], [tensor]), handoff.lease([tensor], [tensor])
    ops = engine.operation(), engine.operation()

    def chain(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        first.wait()
        second.issued(ops[1])
        second.future(tensor)
        return future.value() + 1

    first.issued(ops[0])
    chained = first.future(tensor).then(chain)
    ops[0].finish()
    assert chained.wait().item() == 1
    ops[1].finish()
    second.wait()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_starts_its_own_thread() -> None:
    from mccl.handoff.completion import shared_queue

    engine = FakeEngine()
    shared = shared_queue()
    handoff = HostHandoff(shared)
    tensor = torch.zeros(1)
    lease = handoff.lease([tensor], [tensor])
    op = engine.operation()
    lease.issued(op)
    future = lease.future(tensor)
    assert shared.watched() == 1
    child = os.fork()
    if child == 0:
        # Any failure must end the child here, not in pytest's machinery.
        os._exit(0 if shared.watched() == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert shared.watched() == 1
    op.finish()
    future.wait()


def test_close_ends_the_thread(engine: FakeEngine) -> None:
    tensor = torch.zeros(1)
    lease = HostHandoff(engine.queue).lease([tensor], [tensor])
    lease.issued(engine.operation())
    lease.future(tensor)
    thread = engine.queue._thread
    assert thread is not None
    engine.queue.close()
    assert not thread.is_alive()
