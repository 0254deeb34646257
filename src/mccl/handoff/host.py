"""Host memory: lent in place, staged only where it is not contiguous.

The engine reads and writes the tensor's own bytes, so there are no tickets: O1 holds
because host code has written its tensors when it calls, O2 because ``wait`` blocks.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from mccl.engine import EngineBroken, Gate, Operation, Status
from mccl.handoff.base import (
    Handoff,
    Translate,
    WaitTimeout,
    at_end_of_backward,
    check_lendable,
    inside_backward,
    is_plain,
    plain_copy,
)
from mccl.handoff.completion import CompletionQueue, shared_queue


class HostLoan:
    """The part of a lease that must outlive the caller's interest in it (B1).

    ``settle`` runs the end exactly once, on whichever thread finds the operation complete
    first: a waiting one, the completion thread, or the issuing one.
    """

    def __init__(
        self,
        tensors: tuple[torch.Tensor, ...],
        copies: list[tuple[torch.Tensor, torch.Tensor]],
        translate: Translate | None,
    ) -> None:
        self._held: tuple[torch.Tensor, ...] = tensors
        self._copies = copies
        self._translate = translate
        self._lock = threading.Lock()
        self._futures: list[tuple[torch.futures.Future[Any], Any]] = []
        self._error: Exception | None = None
        self.settled = False
        self.op: Operation | None = None

    def settle(self) -> bool:
        """End the loan if the operation has ended; see ``completion.Settles``."""
        with self._lock:
            if not self.settled and not self._end():
                return False
            futures, self._futures = self._futures, []
        # Outside the lock: completing a future runs its callbacks, which may wait on this loan.
        for future, value in futures:
            self._deliver(future, value)
        return True

    def _end(self) -> bool:
        op = self.op
        try:
            status = Status.OK if op is None else op.test()
            if status == Status.PENDING:
                return False
            if status != Status.OK:
                raise EngineBroken(status)
            # A result that failed half-way is never copied out.
            with torch.no_grad():
                for tensor, staged in self._copies:
                    tensor.copy_(staged)
        except Exception as error:
            self._error = error
        self.settled = True
        self.op = None
        self._held = ()
        self._copies = []
        return True

    def _deliver(self, future: torch.futures.Future[Any], value: Any) -> None:
        error = self.user_error()
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    def user_error(self) -> Exception | None:
        """What went wrong, as the user should see it."""
        if self._error is None or self._translate is None:
            return self._error
        return self._translate(self._error)

    def wait(self, timeout_us: int) -> None:
        """Block until settled; see ``Lease.wait``."""
        op = self.op
        if op is not None:
            try:
                if op.wait(timeout_us) == Status.WAIT_TIMEOUT:
                    raise WaitTimeout(timeout_us)
            except EngineBroken:
                # Recorded by settle, so that every later wait and future sees the same.
                if not self.settle():
                    raise
        self.settle()
        if self._error is not None:
            raise self._error

    def add_future(self, future: torch.futures.Future[Any], value: Any) -> None:
        """Complete ``future`` with ``value`` when the loan ends."""
        with self._lock:
            self._futures.append((future, value))


class HostLease:
    """A ``Lease`` of host tensors."""

    gate: Gate | None = None

    def __init__(
        self, loan: HostLoan, pointers: tuple[int, ...], completion: CompletionQueue
    ) -> None:
        self.pointers = pointers
        self._loan = loan
        self._completion = completion

    def issued(self, op: Operation | None) -> None:
        """See ``Lease.issued``."""
        self._loan.op = op
        if op is None:
            self._loan.settle()

    def wait(self, timeout_us: int = -1) -> None:
        """Block until the result is in the output tensors; see ``Lease.wait``."""
        self._loan.wait(timeout_us)

    def future(self, value: Any) -> torch.futures.Future[Any]:
        """See ``Lease.future``.

        A Python future cannot carry an exception into C++, and DDP's reducer waits in C++; so
        inside a backward pass the failure is also raised from an engine callback, which runs
        before the reducer looks at the future.
        """
        future: torch.futures.Future[Any] = torch.futures.Future()
        self._loan.add_future(future, value)
        if inside_backward():
            loan = self._loan
            at_end_of_backward(lambda: raise_failure(loan))
        self._completion.watch(self._loan)
        return future

    def is_completed(self) -> bool:
        """See ``Lease.is_completed``."""
        return self._loan.settle()

    def __del__(self) -> None:
        # B1: the engine may still read and write the tensors of a dropped lease.
        if self._loan.op is not None:
            self._completion.watch(self._loan)


def raise_failure(loan: HostLoan) -> None:
    """Wait for the loan's end and raise its failure as the user should see it."""
    try:
        loan.wait(-1)
    except Exception as error:
        translated = loan.user_error()
        if translated is None or translated is error:
            raise
        raise translated from error


class HostHandoff(Handoff):
    """Lends CPU tensors."""

    device_type = "cpu"

    def __init__(self, completion: CompletionQueue | None = None) -> None:
        self._completion = shared_queue() if completion is None else completion

    def lease(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        translate: Translate | None = None,
    ) -> HostLease:
        """See ``Handoff.lease``."""
        check_lendable(self.device_type, inputs, outputs)
        staged: dict[int, torch.Tensor] = {}
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        with torch.no_grad():
            for tensor in (*inputs, *outputs):
                if id(tensor) not in staged and not is_plain(tensor):
                    # Outputs start with their old values too: an operation may leave parts alone.
                    staged[id(tensor)] = plain_copy(tensor)
        for tensor in {id(t): t for t in outputs}.values():
            if id(tensor) in staged:
                copies.append((tensor, staged[id(tensor)]))
        lent = tuple(staged.get(id(t), t) for t in (*inputs, *outputs))
        loan = HostLoan((*inputs, *outputs, *staged.values()), copies, translate)
        return HostLease(loan, tuple(t.data_ptr() for t in lent), self._completion)
