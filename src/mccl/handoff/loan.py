"""The part of a lease that outlives the caller's interest in it (B1)."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Any

import torch

from mccl.engine import EngineBroken, Operation, Status
from mccl.handoff.base import Translate, WaitTimeout


class Loan(ABC):
    """Watches one operation to its end, on whichever thread looks first.

    ``settle`` may be called by the issuing thread, a waiting one and the completion thread;
    the end runs exactly once.
    """

    def __init__(self, translate: Translate | None) -> None:
        self._translate = translate
        self._lock = threading.Lock()
        self._futures: list[tuple[torch.futures.Future[Any], Any]] = []
        self.op: Operation | None = None
        self.issued = False
        self.settled = False
        self.error: Exception | None = None

    @abstractmethod
    def _ended(self, success: bool) -> None:
        """Runs once under the lock when the engine is done; what it raises becomes the error."""

    def settle(self) -> bool:
        """See ``completion.Settles``."""
        with self._lock:
            if not self.settled and not self._try_end():
                return False
            futures, self._futures = self._futures, []
        # Outside the lock: completing a future runs its callbacks, which may wait on this loan.
        for future, value in futures:
            self.deliver(future, value)
        return True

    def _try_end(self) -> bool:
        if not self.issued:
            return False
        try:
            status = Status.OK if self.op is None else self.op.test()
            if status == Status.PENDING:
                return False
            if status != Status.OK:
                raise EngineBroken(status)
        except EngineBroken as broken:
            self.error = broken
        try:
            self._ended(self.error is None)
        except RuntimeError as error:  # torch's own, and ours
            self.error = self.error or error
        self.settled = True
        self.op = None
        return True

    def block(self, timeout_us: int) -> None:
        """Wait on the host until settled; raises ``WaitTimeout`` or what went wrong."""
        op = self.op
        if op is not None:
            try:
                if op.wait(timeout_us) == Status.WAIT_TIMEOUT:
                    raise WaitTimeout(timeout_us)
            except EngineBroken:
                # settle records it, so that every later wait and future sees the same.
                if not self.settle():
                    raise
        self.settle()
        if self.error is not None:
            raise self.error

    def add_future(self, future: torch.futures.Future[Any], value: Any) -> None:
        """Complete ``future`` with ``value``, or with the failure, when the loan settles."""
        with self._lock:
            self._futures.append((future, value))

    def deliver(self, future: torch.futures.Future[Any], value: Any) -> None:
        """Complete ``future`` now."""
        error = self.user_error()
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def user_error(self) -> Exception | None:
        """What went wrong, as the user should see it."""
        if self.error is None or self._translate is None:
            return self.error
        return self._translate(self.error)

    def raise_for_user(self) -> None:
        """Raise what went wrong, translated; nothing when all is well."""
        error = self.user_error()
        if error is not None:
            raise error from (self.error if self.error is not error else None)
