"""What every kind of memory offers the process group.

Theory of operation. A collective borrows tensors, runs without the GIL on engine
threads, and gives them back. How the bytes change hands depends on where they live, so
each kind of memory has one ``Handoff``; it makes one ``Lease`` a collective. The order
of calls, all on the issuing thread unless said otherwise::

    lease = handoff.lease(inputs, outputs)      # GPU: encodes "signal produced" (O1)
    op = comm.submit(call, lease.pointers, gate=lease.gate, ...)
    lease.issued(op)                            # GPU: may encode the consumer's wait (O2)
    lease.wait()  |  lease.future(value)

Three rules hold on every device:

* **O1** the engine does not read a bucket until the work that writes it is complete.
* **O2** nothing reads the result until the engine has written it.
* **O3** only the thread that owns PyTorch's stream encodes on it or commits it.

And **B1**: the lease holds every tensor until the engine is done with it *and* whatever
runs next is ordered behind the result, whether or not the caller keeps the lease.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from mccl.engine import Gate, Operation
from mccl.errors import UsageError

Translate = Callable[[Exception], Exception]
"""Turns what the engine raised (``EngineBroken``) into what a user should see."""


class WaitTimeout(Exception):  # noqa: N818 - an outcome, not an error: the operation goes on
    """``Lease.wait(timeout_us)`` ran out of its own time; the operation goes on."""

    def __init__(self, timeout_us: int) -> None:
        super().__init__(f"the wait's own limit of {timeout_us} µs passed; the operation goes on")
        self.timeout_us = timeout_us


@runtime_checkable
class Lease(Protocol):
    """The tensors of one collective call, for as long as the engine needs them."""

    @property
    def pointers(self) -> tuple[int, ...]:
        """Host addresses, one a tensor: inputs first, then outputs, each contiguous.

        A tensor passed as input and output has the same address in both places. Tensors
        without elements have address 0.
        """

    @property
    def gate(self) -> Gate | None:
        """Tickets the engine waits for and raises; None when the memory is ready now."""

    def issued(self, op: Operation | None) -> None:
        """Take the operation that ``submit`` returned (None: it has completed already)."""

    def wait(self, timeout_us: int = -1) -> None:
        """Order whatever runs next on this thread behind the result.

        Host memory: blocks, at most ``timeout_us`` microseconds when not negative. GPU: the
        current stream waits, the host does not. Raises ``EngineBroken`` when the communicator
        is broken and ``WaitTimeout`` when this wait's own limit passed. May be called again.
        """

    def future(self, value: Any) -> torch.futures.Future[Any]:
        """A future of ``value`` that DDP's reducer and communication hooks can wait on.

        When the communicator breaks it holds the exception, translated for the user.
        """

    def is_completed(self) -> bool:
        """Whether the engine is done with the tensors, successfully or not. Never blocks."""

    def failure(self) -> Exception | None:
        """What the engine reported; None while it works and when it succeeded.

        Never blocks and touches no stream, so any thread may ask.
        """


class Handoff(ABC):
    """Lends the memory of one kind of device to the engine."""

    device_type: str

    @abstractmethod
    def lease(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        translate: Translate | None = None,
    ) -> Lease:
        """Lend tensors to one collective.

        A tensor that is both input and output is passed in both, the same object. Tensors may
        be views with any offset and strides; outputs must not overlap themselves (a stride
        of 0). ``translate`` is applied to exceptions that reach futures. Raises ``UsageError``
        for tensors that cannot be lent: another device, a sparse layout, overlapping outputs.
        """


def check_lendable(
    device_type: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]
) -> None:
    """Raise ``UsageError`` for a tensor whose bytes cannot be lent."""
    for role, tensors in (("input", inputs), ("output", outputs)):
        for index, tensor in enumerate(tensors):
            if tensor.device.type != device_type:
                raise UsageError(
                    f"{role} {index} is on {tensor.device}, but this call's first tensor is on "
                    f"{device_type}: pass tensors of one device to one collective"
                )
            if tensor.layout != torch.strided:
                raise UsageError(
                    f"{role} {index} has layout {tensor.layout}; only dense (torch.strided) "
                    "tensors can be sent: call .to_dense() first"
                )
    for index, tensor in enumerate(outputs):
        if any(s == 0 and n > 1 for s, n in zip(tensor.stride(), tensor.shape, strict=True)):
            raise UsageError(
                f"output {index} of shape {tuple(tensor.shape)} and strides {tensor.stride()} "
                "overlaps itself (it was expanded): pass .contiguous() memory for results"
            )


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor's values are its memory, in order: contiguous, no lazy conj or neg."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy with the same values, never sharing memory with ``tensor``."""
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    copy.copy_(tensor)
    return copy
