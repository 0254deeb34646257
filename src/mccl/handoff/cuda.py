"""CUDA tensors: staged through pinned memory by tickets, without stopping host or GPU.

Theory of operation. The engine cannot reach device memory, so each call borrows pinned
buffers. Per collective, nothing of which blocks the host::

    caller's stream ──event──► in-stream:  copy device → pinned, write produced word   (O1)
                                   engine:  waits for the word, runs, raises consumed
                              out-stream:  wait for consumed word, copy pinned → device (O2)
    whoever waits   ◄──event──┘

A buffer of several pieces writes its word a piece, so that the copy in, the network and
the copy out of one bucket overlap. Buckets overlap each other too: a new call takes other
pinned buffers, and one in-stream and one out-stream keep them in issue order.

What must not sit on the out-stream is a message: it ends when its peer likes, and would
hold back results of calls issued after it. A receive's copy out is issued by ``wait``, on
the stream that waits; a send has none.

Few streams are used on purpose: the hardware has few channels, and a stream that waits for
a word can hold back another one that shares its channel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mccl.engine import Gate, Operation, Piece
from mccl.errors import UsageError
from mccl.handoff.base import Handoff, Translate, check_lendable, is_plain
from mccl.handoff.completion import CompletionQueue, shared_queue
from mccl.handoff.lanes import Lane, Lanes
from mccl.handoff.loan import Loan
from mccl.handoff.staging import Staged, StagingPool
from mccl.handoff.streams import CudaStreams, GpuStreams
from mccl.handoff.words import Word, Words

PIECE_BYTES = 8 << 20
"""Copying 8 MiB over PCIe takes some 300 µs: small against the network, large against a launch."""


@dataclass(slots=True)
class Slot:
    """A pinned buffer and the event behind the last copy out of it."""

    memory: torch.Tensor
    drained: Any = None


@dataclass(frozen=True, slots=True)
class Part:
    """One distinct tensor of a call and its pinned image."""

    tensor: torch.Tensor
    slot: Staged[Slot] | None
    image: torch.Tensor
    """Pinned, of the tensor's dtype and shape, contiguous."""
    is_input: bool
    is_output: bool


@dataclass(frozen=True, slots=True)
class Cut:
    """Elements [start, stop) of a flat tensor and the values of its tickets."""

    start: int
    stop: int
    produced: int
    consumed: int


class StreamLoan(Loan):
    """Holds tensors, pinned buffers and a lane until engine and copies are done."""

    def __init__(
        self,
        handoff: StreamHandoff,
        parts: tuple[Part, ...],
        lane: Lane[Word] | None,
        translate: Translate | None,
    ) -> None:
        super().__init__(translate)
        self._handoff = handoff
        self._lane = lane
        self.parts = parts
        self.copied = False

    def copied_out(self, event: Any) -> None:
        """The copies out are issued (event: behind them), or never will be (None)."""
        with self._lock:
            if self.copied:
                return
            self.copied = True
            for part in self.parts:
                if part.slot is not None:
                    part.slot.memory.drained = event
            if self.settled or not self.issued:
                self._drop()

    def _ended(self, success: bool) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            # Normally raised by the engine; the GPU must not hang on what will never come.
            if not success:
                lane.event.raise_to(lane.value)
            self._handoff.lanes.give_back(lane)
        if self.copied:
            self._drop()

    def _drop(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:  # never submitted
            self._handoff.lanes.give_back(lane)
        parts, self.parts = self.parts, ()
        for part in parts:
            if part.slot is not None:
                self._handoff.staging.give_back(part.slot)


class StreamLease:
    """A ``Lease`` of tensors on a device with streams."""

    def __init__(
        self,
        handoff: StreamHandoff,
        loan: StreamLoan,
        pointers: tuple[int, ...],
        gate: Gate | None,
        cuts: tuple[Cut, ...],
        consumed: tuple[Word, int] | None,
    ) -> None:
        self.pointers = pointers
        self.gate = gate
        self._handoff = handoff
        self._loan = loan
        self._cuts = cuts
        self._consumed = consumed
        self._done: Any = None

    def issued(self, op: Operation | None) -> None:
        """See ``Lease.issued``. Issues the copies out, unless this is a message."""
        loan = self._loan
        loan.op = op
        loan.issued = True
        handoff = self._handoff
        if not any(part.is_output for part in loan.parts):
            # A send is over for the device once it is copied in.
            self._copied(handoff.in_stream)
        elif self._consumed is not None and any(part.is_input for part in loan.parts):
            self._copy_out(handoff.out_stream)
        if op is None:
            loan.settle()
        else:
            self._handoff.completion.watch(loan)

    def wait(self, timeout_us: int = -1) -> None:
        """Make the current stream wait for the result; see ``Lease.wait``.

        A result that failed raises if the failure is known by now; one that fails later is
        reported by the next call on the communicator. ``timeout_us`` matters only with
        ``event_sync`` off.
        """
        loan = self._loan
        streams = self._handoff.streams
        current = streams.current()
        if self._done is None:
            if self._consumed is None:
                loan.block(timeout_us)
            self._copy_out(current)
        streams.wait_event(current, self._done)
        loan.settle()
        if loan.error is not None:
            raise loan.error

    def _copy_out(self, stream: Any) -> None:
        streams = self._handoff.streams
        for part in self._loan.parts:
            if not part.is_output or part.tensor.numel() == 0:
                continue
            if len(self._cuts) > 1:
                flat, image = part.tensor.view(-1), part.image.view(-1)
                for cut in self._cuts:
                    self._await_word(stream, cut.consumed)
                    streams.copy(stream, flat[cut.start : cut.stop], image[cut.start : cut.stop])
            else:
                self._await_word(stream, self._cuts[-1].consumed)
                streams.copy(stream, part.tensor, part.image)
        self._copied(stream)

    def _copied(self, stream: Any) -> None:
        self._done = self._handoff.streams.record(stream)
        self._loan.copied_out(self._done)

    def _await_word(self, stream: Any, value: int) -> None:
        if self._consumed is not None:
            self._handoff.streams.wait_value(stream, self._consumed[0].address, value)  # O2

    def future(self, value: Any) -> torch.futures.Future[Any]:
        """See ``Lease.future``. Completed at once: streams order what is chained to it."""
        handoff = self._handoff
        if self._done is None:
            self.wait()
        if self._loan.error is not None:
            future: torch.futures.Future[Any] = torch.futures.Future()
            self._loan.deliver(future, value)
            return future
        # Not the out-stream itself: it may already wait for later calls.
        handoff.streams.wait_event(handoff.future_stream, self._done)
        return handoff.streams.completed_future(handoff.future_stream, value)

    def is_completed(self) -> bool:
        """See ``Lease.is_completed``: the engine is done and the results are on the device."""
        if not self._loan.settle():
            return False
        return self._done is None or self._handoff.streams.reached(self._done)

    def failure(self) -> Exception | None:
        """See ``Lease.failure``."""
        self._loan.settle()
        return self._loan.error

    def __del__(self) -> None:
        self._loan.copied_out(self._done)


class StreamHandoff(Handoff):
    """Lends tensors of one device through pinned memory."""

    def __init__(
        self,
        streams: GpuStreams,
        *,
        event_sync: bool = True,
        piece_bytes: int = PIECE_BYTES,
        completion: CompletionQueue | None = None,
    ) -> None:
        self.device_type = streams.device_type
        self.streams = streams
        self.event_sync = event_sync
        self.completion = shared_queue() if completion is None else completion
        self.in_stream = streams.create_stream()
        self.out_stream = streams.create_stream()
        self.future_stream = streams.create_stream()
        self._piece_bytes = piece_bytes
        self._words = Words(streams.pinned)
        self.lanes: Lanes[Word] = Lanes(self._words.make)
        self.staging: StagingPool[Slot] = StagingPool(
            lambda nbytes: Slot(streams.pinned(nbytes)),
            # A buffer may still be on its way out; the in-stream must not overwrite it.
            usable=lambda slot: slot.drained is None or streams.reached(slot.drained),
        )
        self._produced = self._words.make()
        self._produced_value = 0

    def lease(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        translate: Translate | None = None,
    ) -> StreamLease:
        """See ``Handoff.lease``."""
        check_lendable(self.device_type, inputs, outputs)
        read, written = {id(t) for t in inputs}, {id(t) for t in outputs}
        parts = {
            key: self._part(tensor, key in read, key in written)
            for key, tensor in {id(t): t for t in (*inputs, *outputs)}.items()
        }
        lane = self.lanes.take() if self.event_sync else None
        cuts = self._cuts(tuple(parts.values()), lane)
        # O1: behind everything the caller's stream has been given so far.
        self.streams.wait_event(self.in_stream, self.streams.record(self.streams.current()))
        self._copy_in(tuple(parts.values()), cuts)
        gate = None if lane is None else self._gate(cuts, lane)
        loan = StreamLoan(self, tuple(parts.values()), lane, translate)
        pointers = tuple(
            0 if t.numel() == 0 else parts[id(t)].image.data_ptr() for t in (*inputs, *outputs)
        )
        consumed = None if lane is None else (lane.event, lane.value)
        return StreamLease(self, loan, pointers, gate, cuts, consumed)

    def _part(self, tensor: torch.Tensor, is_input: bool, is_output: bool) -> Part:
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes == 0:
            return Part(tensor, None, tensor, is_input, is_output)
        slot = self.staging.take(nbytes)
        image = slot.memory.memory[:nbytes].view(tensor.dtype).view(tensor.shape)
        return Part(tensor, slot, image, is_input, is_output)

    def _cuts(self, parts: tuple[Part, ...], lane: Lane[Word] | None) -> tuple[Cut, ...]:
        """Pieces of an in-place call on one contiguous tensor; otherwise the whole of it."""
        size, total = 0, 0
        if len(parts) == 1 and parts[0].is_input and parts[0].is_output:
            tensor = parts[0].tensor
            if lane is not None and is_plain(tensor):
                total = tensor.numel()
                size = max(1, self._piece_bytes // tensor.element_size())
        count = max(1, -(-total // size)) if size else 1
        produced = self._produced_value
        self._produced_value += count
        first = 0
        if lane is not None:
            first = lane.value - 1
            lane.value += count - 1
        return tuple(
            Cut(i * size, min((i + 1) * size, total), produced + i + 1, first + i + 1)
            for i in range(count)
        )

    def _copy_in(self, parts: tuple[Part, ...], cuts: tuple[Cut, ...]) -> None:
        streams, stream = self.streams, self.in_stream
        if len(cuts) > 1:
            flat, image = parts[0].tensor.view(-1), parts[0].image.view(-1)
            for cut in cuts:
                streams.copy(stream, image[cut.start : cut.stop], flat[cut.start : cut.stop])
                streams.write_value(stream, self._produced.address, cut.produced)
            return
        for part in parts:
            if part.is_input and part.tensor.numel():
                streams.copy(stream, part.image, part.tensor)
        if self.event_sync:
            streams.write_value(stream, self._produced.address, cuts[0].produced)
        else:
            streams.synchronize(stream)

    def _gate(self, cuts: tuple[Cut, ...], lane: Lane[Word]) -> Gate:
        pieces = tuple(
            Piece(cut.start, cut.stop - cut.start, cut.produced, cut.consumed) for cut in cuts
        )
        return Gate(
            produced=self._produced.ticket,
            produced_value=cuts[-1].produced,
            consumed=lane.event.ticket,
            consumed_value=cuts[-1].consumed,
            pieces=pieces if len(cuts) > 1 else (),
        )


def cuda_handoff(device: torch.device, *, event_sync: bool) -> StreamHandoff:
    """The handoff of a CUDA device. Raises ``UsageError`` when torch has no CUDA."""
    if not torch.cuda.is_available():
        raise UsageError(
            f"tensors on {device} need a torch with CUDA and a working driver; this torch is "
            f"{torch.__version__}"
        )
    return StreamHandoff(CudaStreams(device, tickets=event_sync), event_sync=event_sync)
