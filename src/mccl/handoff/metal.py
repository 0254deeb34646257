"""MPS tensors, reduced in place in unified memory without stopping the GPU.

Theory of operation. The bytes of an MPS tensor in shared storage are ordinary memory, so
the engine works on them in place; what is missing is order. Per collective:

1. ``lease`` encodes "signal produced = k" behind the kernels that write the tensors and
   commits. The engine starts when the GPU gets there (O1).
2. ``wait`` encodes "wait for consumed" in front of whatever comes next on the stream; the
   engine raises it when the result is written (O2). The host never blocks.
3. The loan keeps the tensors until the engine is done *and* the wait is encoded (B1): a
   buffer freed earlier would be handed to the next tensor while the engine still writes it.

Everything that encodes runs on the thread that owns the stream (O3, ``owner.py``); the
completion thread only drops references. There is one stream, so a future can be completed
only where whatever is chained to it would run behind the wait: in ``future`` itself, or,
inside a backward pass, in a callback at its end, so that the buckets between overlap.

Memory that is private to the GPU, or everything when ``unified_collective`` is off, is
copied through shared staging buffers in stream order. With ``event_sync`` off the host
waits for the stream before and for the engine after: slow, but nothing can be reordered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mccl.engine import Gate, Operation, native_library
from mccl.errors import UsageError
from mccl.handoff.backward import backward_future, ending_backward, inside_backward
from mccl.handoff.base import (
    Handoff,
    Translate,
    check_lendable,
)
from mccl.handoff.completion import CompletionQueue, shared_queue
from mccl.handoff.lanes import Lane, Lanes
from mccl.handoff.loan import Loan
from mccl.handoff.metal_bridge import MetalBridge, SharedEvent
from mccl.handoff.mps_memory import MpsMemory, Place, TorchMpsMemory, loaded_torch_library
from mccl.handoff.owner import StreamOwner
from mccl.handoff.staging import Staged, StagingPool


@dataclass(frozen=True, slots=True)
class StagingBuffer:
    """A shared MTLBuffer of our own."""

    buffer: int
    address: int


@dataclass(frozen=True, slots=True)
class Part:
    """One distinct tensor of a call and what stands in for it."""

    tensor: torch.Tensor
    plain: torch.Tensor
    """``tensor``, or a packed copy of it."""
    place: Place
    staging: Staged[StagingBuffer] | None
    nbytes: int

    @property
    def address(self) -> int:
        """What the engine reads and writes."""
        if self.staging is not None:
            return self.staging.memory.address
        return self.place.address or 0


class MetalLoan(Loan):
    """Holds parts and a lane until the engine is done and the stream is ordered behind it."""

    def __init__(
        self,
        handoff: MetalHandoff,
        parts: Sequence[Part],
        lane: Lane[SharedEvent] | None,
        translate: Translate | None,
    ) -> None:
        super().__init__(translate)
        self._handoff = handoff
        self._lane = lane
        self.parts = tuple(parts)
        self.ordered = False

    def release(self) -> None:
        """Nothing further will be encoded for this loan. Any thread; may be repeated."""
        with self._lock:
            if self.ordered:
                return
            self.ordered = True
            if self.settled or not self.issued:
                self._drop()

    def _ended(self, success: bool) -> None:
        lane = self._lane
        if lane is not None and not success:
            # The GPU must not hang on a result that will never come.
            self._handoff.bridge.raise_event(lane.event, lane.value)
        if self.ordered:
            self._drop()
        else:
            self._drop_lane()

    def _drop_lane(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            self._handoff.lanes.give_back(lane)

    def _drop(self) -> None:
        self._drop_lane()
        parts, self.parts = self.parts, ()
        for part in parts:
            if part.staging is not None:
                self._handoff.staging.give_back(part.staging)
        self._handoff.owner.end()


class MetalLease:
    """A ``Lease`` of MPS tensors."""

    def __init__(
        self,
        handoff: MetalHandoff,
        loan: MetalLoan,
        pointers: tuple[int, ...],
        results: frozenset[int],
        gate: Gate | None,
        lane: Lane[SharedEvent] | None,
    ) -> None:
        self.pointers = pointers
        self.gate = gate
        self._handoff = handoff
        self._loan = loan
        self._results = results
        self._consumed = None if lane is None else (lane.event, lane.value)

    def issued(self, op: Operation | None) -> None:
        """See ``Lease.issued``."""
        self._loan.op = op
        self._loan.issued = True
        if op is None:
            self._loan.settle()
        else:
            self._handoff.completion.watch(self._loan)

    def wait(self, timeout_us: int = -1) -> None:
        """Make the stream wait for the result; see ``Lease.wait``.

        A result that failed raises if the failure is known by now; one that fails later is
        reported by the next call on the communicator. ``timeout_us`` matters only with
        ``event_sync`` off.
        """
        loan = self._loan
        if not loan.ordered:
            self._handoff.owner.check()
            self._order(timeout_us)
            loan.release()
        if loan.error is not None:
            raise loan.error

    def _order(self, timeout_us: int) -> None:
        loan = self._loan
        if self._consumed is None:
            if not loan.settle():
                loan.block(timeout_us)
        elif not loan.settle():
            self._handoff.bridge.encode_wait(*self._consumed)  # O2
        if loan.error is not None:
            return
        for part in loan.parts:
            if id(part.tensor) in self._results:
                self._handoff.write_back(part)

    def future(self, value: Any) -> torch.futures.Future[Any]:
        """See ``Lease.future``."""
        if inside_backward() or ending_backward():
            return backward_future(lambda future: self._finish_backward(future, value))
        future: torch.futures.Future[Any] = torch.futures.Future()
        self._complete(future, value)
        return future

    def _complete(self, future: torch.futures.Future[Any], value: Any) -> None:
        try:
            self.wait()
        except Exception as error:
            if error is not self._loan.error:
                raise
        self._loan.deliver(future, value)

    def _finish_backward(self, future: torch.futures.Future[Any], value: Any) -> None:
        # The wait is encoded first, then the future completes: what hooks chained to it
        # (decompression) is encoded behind the wait, on this thread.
        with self._handoff.owner.finalising_backward():
            self._complete(future, value)
        self._loan.raise_for_user()

    def is_completed(self) -> bool:
        """See ``Lease.is_completed``."""
        return self._loan.settle()

    def failure(self) -> Exception | None:
        """See ``Lease.failure``."""
        self._loan.settle()
        return self._loan.error

    def __del__(self) -> None:
        # May run on any thread, so it encodes nothing; the completion thread holds the loan
        # until the engine is done.
        self._loan.release()


class MetalHandoff(Handoff):
    """Lends MPS tensors. One a process: there is one device and one stream."""

    def __init__(
        self,
        bridge: MetalBridge,
        memory: MpsMemory,
        *,
        unified: bool = True,
        event_sync: bool = True,
        completion: CompletionQueue | None = None,
    ) -> None:
        self.device_type = memory.device_type
        self.bridge = bridge
        self.memory = memory
        self.unified = unified
        self.event_sync = event_sync
        self.completion = shared_queue() if completion is None else completion
        self.owner = StreamOwner()
        self.lanes: Lanes[SharedEvent] = Lanes(bridge.create_event)
        self.staging: StagingPool[StagingBuffer] = StagingPool(self._make_staging)
        self._produced = bridge.create_event()
        self._produced_value = 0

    def _make_staging(self, nbytes: int) -> StagingBuffer:
        buffer = self.bridge.create_buffer(nbytes)
        contents = self.bridge.describe(buffer).contents
        assert contents is not None, "a shared buffer has contents"
        return StagingBuffer(buffer, contents)

    def lease(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        translate: Translate | None = None,
    ) -> MetalLease:
        """See ``Handoff.lease``. Raises ``UsageError`` also for a second thread (O3)."""
        check_lendable(self.device_type, inputs, outputs)
        self.owner.begin()
        parts: dict[int, Part] = {}
        try:
            for tensor in (*inputs, *outputs):
                if id(tensor) not in parts:
                    parts[id(tensor)] = self._part(tensor)
            gate, lane = self._signal()
        except BaseException:
            self.owner.end()
            raise
        pointers = tuple(parts[id(t)].address for t in (*inputs, *outputs))
        loan = MetalLoan(self, tuple(parts.values()), lane, translate)
        results = frozenset(id(t) for t in outputs)
        return MetalLease(self, loan, pointers, results, gate, lane)

    def _part(self, tensor: torch.Tensor) -> Part:
        if tensor.numel() == 0:
            return Part(tensor, tensor, Place(None, None, 0), None, 0)
        plain = tensor if self.memory.is_plain(tensor) else self.memory.pack(tensor)
        place = self.memory.locate(plain)
        nbytes = plain.numel() * plain.element_size()
        if self.unified and place.address is not None:
            return Part(tensor, plain, place, None, nbytes)
        if place.buffer is None:
            raise UsageError(
                "this torch does not show the MTLBuffer of an MPS tensor, so it cannot be copied "
                "through a staging buffer: unset MCCL_UNIFIED_COLLECTIVE"
            )
        staging = self.staging.take(nbytes)
        self.bridge.encode_copy(place.buffer, place.offset, staging.memory.buffer, 0, nbytes)
        return Part(tensor, plain, place, staging, nbytes)

    def _signal(self) -> tuple[Gate | None, Lane[SharedEvent] | None]:
        if not self.event_sync:
            self.memory.synchronize()
            return None, None
        lane = self.lanes.take()
        self._produced_value += 1
        self.bridge.encode_signal(self._produced, self._produced_value)  # O1
        gate = Gate(
            produced=self._produced.ticket,
            produced_value=self._produced_value,
            consumed=lane.event.ticket,
            consumed_value=lane.value,
        )
        return gate, lane

    def write_back(self, part: Part) -> None:
        """Bring a staged or packed result to its tensor, in stream order."""
        if part.staging is not None:
            assert part.place.buffer is not None
            self.bridge.encode_copy(
                part.staging.memory.buffer, 0, part.place.buffer, part.place.offset, part.nbytes
            )
        if part.plain is not part.tensor:
            self.memory.unpack(part.tensor, part.plain)

    def close(self) -> None:
        """Give everything back to Metal. Only when no lease is outstanding and the GPU is idle."""
        for event in (self._produced, *self.lanes.drain()):
            self.bridge.destroy_event(event)
        for staging in self.staging.drain():
            self.bridge.release_buffer(staging.buffer)
        self.bridge.close()


def metal_handoff(*, unified: bool, event_sync: bool) -> MetalHandoff:
    """The handoff of the MPS device. Raises ``UsageError`` where there is none."""
    bridge = MetalBridge(native_library(), loaded_torch_library())
    memory = TorchMpsMemory(bridge)
    return MetalHandoff(bridge, memory, unified=unified, event_sync=event_sync)
