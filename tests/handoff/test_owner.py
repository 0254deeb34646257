"""O3: which thread may touch the stream, and when ownership passes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from mccl.errors import UsageError
from mccl.handoff.owner import StreamOwner

pytestmark = pytest.mark.timeout(60)


def elsewhere(work: Callable[[], None]) -> BaseException | None:
    """Run on another thread that stays alive until it is looked at; what it raised."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except UsageError as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="intruder")
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_a_second_thread_is_refused_while_a_burst_lasts() -> None:
    owner = StreamOwner()
    owner.begin()
    error = elsewhere(owner.begin)
    assert error is not None
    assert "intruder" in str(error)
    assert "O3" in str(error)
    owner.check()
    owner.end()
    assert elsewhere(owner.begin) is None


def test_a_dead_thread_owns_nothing() -> None:
    owner = StreamOwner()
    assert elsewhere(owner.begin) is None
    owner.check()


def test_backward_runs_on_its_own_thread() -> None:
    owner = StreamOwner()
    owner.begin()
    raised: list[BaseException | None] = []

    def other_thread_in_backward() -> None:
        x = torch.ones(1, requires_grad=True)
        x.register_hook(lambda grad: owner.begin())
        (x * 2).backward()

    raised.append(elsewhere(other_thread_in_backward))
    assert raised == [None]
    owner.check()


def test_the_end_of_backward_is_still_backward() -> None:
    owner = StreamOwner()
    owner.begin()

    def finalise() -> None:
        with owner.finalising_backward():
            owner.check()

    assert elsewhere(finalise) is None
    assert elsewhere(owner.check) is not None
