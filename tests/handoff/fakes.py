"""Operations that end when a test says so, and a completion queue that notices."""

from __future__ import annotations

import threading

from mccl.engine import EngineBroken, Operation, Status
from mccl.handoff.completion import CompletionQueue


class FakeOperation(Operation):
    """Stands for an operation in the engine; ``finish`` ends it."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine = engine
        self._ended = threading.Event()
        self._status = Status.OK
        self.tests = 0

    def finish(self, status: Status = Status.OK) -> None:
        self._status = status
        self._ended.set()
        self._engine.completed()

    def test(self) -> Status:
        self.tests += 1
        return self._status if self._ended.is_set() else Status.PENDING

    def wait(self, timeout_us: int = -1) -> Status:
        if not self._ended.wait(None if timeout_us < 0 else timeout_us / 1e6):
            return Status.WAIT_TIMEOUT
        if self._status != Status.OK:
            raise EngineBroken(self._status)
        return self._status

    def release(self) -> None:
        pass

    def __del__(self) -> None:
        pass


class FakeEngine:
    """Counts completions as ``wait_completion`` does."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self.queue = CompletionQueue(self._wait)

    def operation(self) -> FakeOperation:
        return FakeOperation(self)

    def completed(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def _wait(self, cursor: int, timeout_us: int) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._count > cursor, timeout_us / 1e6)
            return self._count
