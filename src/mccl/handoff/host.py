"""Host memory: lent in place, staged only where it is not contiguous.

The engine reads and writes the tensor's own bytes, so there are no tickets: O1 holds
because host code has written its tensors when it calls, O2 because ``wait`` blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mccl.engine import EngineBroken, Gate, Operation
from mccl.handoff.backward import backward_future, ending_backward, inside_backward
from mccl.handoff.base import (
    Handoff,
    Translate,
    check_lendable,
    is_plain,
    plain_copy,
)
from mccl.handoff.completion import CompletionQueue, shared_queue
from mccl.handoff.loan import Loan


class HostLoan(Loan):
    """Holds host tensors; at the end copies staged results to where they belong, once."""

    def __init__(
        self,
        tensors: tuple[torch.Tensor, ...],
        copies: list[tuple[torch.Tensor, torch.Tensor]],
        translate: Translate | None,
    ) -> None:
        super().__init__(translate)
        self._held = tensors
        self._copies = copies

    def _ended(self, success: bool) -> None:
        held, copies = self._held, self._copies
        self._held, self._copies = (), []
        if success:  # a result that failed half-way is never copied out
            with torch.no_grad():
                for tensor, staged in copies:
                    tensor.copy_(staged)
        del held


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
        self._loan.issued = True
        if op is None:
            self._loan.settle()

    def wait(self, timeout_us: int = -1) -> None:
        """Block until the result is in the output tensors; see ``Lease.wait``."""
        self._loan.block(timeout_us)

    def future(self, value: Any) -> torch.futures.Future[Any]:
        """See ``Lease.future``.

        Inside a backward pass the future completes in an engine callback, on the backward
        thread and in the order of the calls. So hooks that chain further collectives issue
        them in the same order on every rank (from the completion thread they would race with
        the next bucket), and a failure is raised by backward itself: a Python future cannot
        carry an exception into C++, where DDP's reducer waits.
        """
        if ending_backward() or inside_backward():
            return backward_future(lambda future: self._complete(future, value))
        loan = self._loan
        future: torch.futures.Future[Any] = torch.futures.Future()
        loan.add_future(future, value)
        self._completion.watch(loan)
        return future

    def _complete(self, future: torch.futures.Future[Any], value: Any) -> None:
        try:
            self._loan.block(-1)
        except EngineBroken:
            self._loan.deliver(future, value)
            self._loan.raise_for_user()
        else:
            self._loan.deliver(future, value)

    def is_completed(self) -> bool:
        """See ``Lease.is_completed``."""
        return self._loan.settle()

    def failure(self) -> Exception | None:
        """See ``Lease.failure``."""
        self._loan.settle()
        return self._loan.error

    def __del__(self) -> None:
        # B1: the engine may still read and write the tensors of a dropped lease.
        if self._loan.op is not None:
            self._completion.watch(self._loan)


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
        tensors = (*inputs, *outputs)
        staged: dict[int, torch.Tensor] = {}
        with torch.no_grad():
            for tensor in tensors:
                if not is_plain(tensor) and id(tensor) not in staged:
                    # Outputs start with their old values too: an operation may leave parts alone.
                    staged[id(tensor)] = plain_copy(tensor)
        results = {id(t): t for t in outputs}
        copies = [(t, staged[key]) for key, t in results.items() if key in staged]
        lent = tuple(staged.get(id(t), t) for t in tensors)
        loan = HostLoan((*tensors, *staged.values()), copies, translate)
        return HostLease(loan, tuple(t.data_ptr() for t in lent), self._completion)
