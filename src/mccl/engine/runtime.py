"""Handles of the native engine: plans, prepared calls, communicators, operations.

Every method releases the GIL while it is inside the engine. The synchronous path
(``NativeComm.submit`` with ``sync=True``) is the hot one: one descriptor a call is kept
ready, and a submission fills in pointers and the time limit.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

from mccl.engine.library import last_error, native_library
from mccl.engine.structs import (
    NO_REDOP,
    CCommConfig,
    CDep,
    CError,
    Channel,
    COpDesc,
    COpInfo,
    CP2PDesc,
    CPeerState,
    CPiece,
    CRecord,
    CScratch,
    CStats,
    CStep,
    DType,
    Failure,
    Gate,
    NativeError,
    OpInfo,
    PeerState,
    Record,
    RedOp,
    Stats,
    Status,
    Ticket,
)
from mccl.plans.plan import Collective, Plan

_SYNC = 1
_PENDING = int(Status.PENDING)
_SLICE_US = 200_000
"""Longest sleep inside the engine before Python may run signal handlers."""
_FINAL = 1
_INCOMING_FIRST = 2


class EngineBroken(Exception):
    """The engine refused: the communicator is broken (ask it why), or the call is impossible."""

    def __init__(self, status: int) -> None:
        self.status = Status(status)
        detail = last_error() if self.status is Status.INVALID else ""
        super().__init__(f"engine: {self.status.name}{': ' + detail if detail else ''}")


class NativePlan:
    """A plan inside the engine. Raises ValueError when the engine finds it inconsistent."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.handle: int | None = None
        library = native_library()
        self._destroy = library.mccl_plan_destroy
        deps = [CDep(dep.step, int(dep.kind)) for step in plan.steps for dep in step.deps]
        steps = (CStep * max(len(plan.steps), 1))()
        first = 0
        for c_step, step in zip(steps, plan.steps, strict=False):
            c_step.kind = int(step.kind)
            c_step.flags = _FINAL * step.final | _INCOMING_FIRST * step.incoming_first
            c_step.peer = step.peer
            if step.dst is not None:
                c_step.dst_buffer, c_step.dst_offset = step.dst.buffer, step.dst.offset
            if step.src is not None:
                c_step.src_buffer, c_step.src_offset = step.src.buffer, step.src.offset
            c_step.count = step.count
            c_step.first_dep, c_step.n_deps = first, len(step.deps)
            first += len(step.deps)
        c_deps = (CDep * max(len(deps), 1))(*deps)
        scratch = (CScratch * max(len(plan.scratch), 1))(
            *[CScratch(item.count, int(item.accumulate), 0) for item in plan.scratch]
        )
        self.handle = library.mccl_plan_create(
            plan.world,
            plan.rank,
            len(plan.external),
            scratch,
            len(plan.scratch),
            steps,
            len(plan.steps),
            c_deps,
            len(deps),
        )
        if not self.handle:
            raise ValueError(f"the engine refuses the {plan.algorithm} plan: {last_error()}")

    def __del__(self) -> None:
        if self.handle:
            self._destroy(self.handle)
            self.handle = None


class Call:
    """A collective prepared for many submissions: its plan, types and fingerprint.

    ``count`` is in elements and the same on every rank of the call.
    """

    def __init__(
        self,
        plan: NativePlan,
        collective: Collective,
        dtype: DType,
        redop: RedOp | None,
        wire_dtype: DType,
        root: int,
        count: int,
        premul: float = 1.0,
    ) -> None:
        self.plan = plan
        self.externals = len(plan.plan.external)
        self.fields = (
            int(collective),
            int(dtype),
            NO_REDOP if redop is None else int(redop),
            int(wire_dtype),
            root,
            count,
            premul,
        )
        self._slots = threading.local()

    def descriptor(
        self,
    ) -> tuple[COpDesc, ctypes.Array[ctypes.c_void_p], object, ctypes.c_void_p, object]:
        """This thread's descriptor, buffers and operation handle, with references for C."""
        ready = getattr(self._slots, "ready", None)
        if ready is None:
            collective, dtype, redop, wire, root, count, premul = self.fields
            buffers = (ctypes.c_void_p * max(self.externals, 1))()
            desc = COpDesc(
                collective=collective,
                dtype=dtype,
                redop=redop,
                wire_dtype=wire,
                root=root,
                count=count,
                premul=premul,
                plan=self.plan.handle,
                buffers=ctypes.addressof(buffers),
            )
            handle = ctypes.c_void_p()
            ready = (desc, buffers, ctypes.byref(desc), handle, ctypes.byref(handle))
            self._slots.ready = ready
        found: tuple[COpDesc, ctypes.Array[ctypes.c_void_p], object, ctypes.c_void_p, object] = (
            ready
        )
        return found


class Operation:
    """An operation in flight. ``release`` (or garbage collection) lets the engine forget it."""

    __slots__ = ("_handle", "_keep", "_library")

    def __init__(self, library: ctypes.CDLL, handle: int, keep: object = None) -> None:
        self._library = library
        self._handle = handle
        self._keep = keep

    def wait(self, timeout_us: int = -1) -> Status:
        """Block until complete: ``OK``, or ``WAIT_TIMEOUT`` when ``timeout_us`` passed first.

        Negative: no limit of its own. Sleeps in slices, so that Ctrl-C works. Raises
        EngineBroken when the operation failed.
        """
        wait = self._library.mccl_op_wait
        left = timeout_us
        while left < 0 or left > _SLICE_US:
            status: int = wait(self._handle, _SLICE_US)
            if status != Status.WAIT_TIMEOUT:
                break
            left = left - _SLICE_US if left >= 0 else left
        else:
            status = wait(self._handle, left)
        if status > Status.WAIT_TIMEOUT:
            raise EngineBroken(status)
        return Status(status)

    def test(self) -> Status:
        """``OK``, ``PENDING`` or ``BROKEN``, at once."""
        return Status(self._library.mccl_op_test(self._handle))

    def info(self) -> OpInfo:
        """Its number, source and times."""
        info = COpInfo()
        self._library.mccl_op_get_info(self._handle, ctypes.byref(info))
        return OpInfo(
            info.sequence, info.source, info.submitted_us, info.started_us, info.completed_us
        )

    def release(self) -> None:
        """Forget it; the operation itself goes on."""
        if self._handle:
            self._library.mccl_op_release(self._handle)
            self._handle = 0

    def __del__(self) -> None:
        self.release()


def _address(ticket: Ticket | None) -> int | None:
    return None if ticket is None else ctypes.addressof(ticket)


class NativeComm:
    """A communicator inside the engine: its links, its queue of operations, its first error.

    Sizes in bytes, times in µs. ``name`` is cut to 63 bytes.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        epoch: int,
        name: str,
        peer_timeout_us: int,
        park_bytes: int,
        spin_us: int,
        yield_spin: bool,
        checksum: bool,
        record_capacity: int,
        send_thread: bool = False,
    ) -> None:
        self._handle: int | None = None
        self._library = native_library()
        self._submit = self._library.mccl_submit
        config = CCommConfig(
            rank=rank,
            size=size,
            epoch=epoch,
            peer_timeout_us=peer_timeout_us,
            park_bytes=park_bytes,
            spin_us=spin_us,
            yield_spin=int(yield_spin),
            checksum=int(checksum),
            record_capacity=record_capacity,
            send_thread=int(send_thread),
            name=name.encode()[:63],
        )
        self._handle = self._library.mccl_comm_create(ctypes.byref(config))
        if not self._handle:
            raise EngineBroken(Status.INVALID)
        self.rank = rank
        self.size = size

    def set_peer_label(self, peer: int, text: str) -> None:
        """How messages call ``peer``, e.g. ``"mac-17 (10.0.0.17) pid 4242"``."""
        self._check(self._library.mccl_comm_set_peer_label(self._handle, peer, text.encode()))

    def add_link(self, peer: int, channel: Channel, fds: Sequence[int]) -> None:
        """Hand over connected sockets; the engine owns them from here, also on failure."""
        array = (ctypes.c_int32 * len(fds))(*fds)
        self._check(
            self._library.mccl_comm_add_link(self._handle, peer, int(channel), array, len(fds))
        )

    def has_link(self, peer: int, channel: Channel) -> bool:
        """Whether a link of this kind to ``peer`` exists."""
        return bool(self._library.mccl_comm_has_link(self._handle, peer, int(channel)))

    def submit(
        self,
        call: Call,
        pointers: Sequence[int],
        *,
        sync: bool,
        timeout_us: int,
        gate: Gate | None = None,
        tag: int = 0,
    ) -> Operation | None:
        """Queue one collective; ``pointers`` are the plan's external buffers in order.

        With ``sync`` returns None when it is complete. Raises EngineBroken.
        """
        desc, buffers, reference, handle, handle_reference = call.descriptor()
        for index, pointer in enumerate(pointers):
            buffers[index] = pointer
        desc.timeout_us = timeout_us
        desc.tag = tag
        desc.flags = _SYNC if sync else 0
        if gate is not None:
            return self._submit_gated(desc, reference, handle, sync, gate)
        status = self._submit(self._handle, reference, handle_reference)
        if status == _PENDING and sync:
            # The engine goes on by itself; waiting here lets Python see signals.
            Operation(self._library, handle.value or 0).wait()
            return None
        if status:
            raise EngineBroken(status)
        return None if sync else Operation(self._library, handle.value or 0)

    def _submit_gated(
        self, desc: COpDesc, reference: object, handle: ctypes.c_void_p, sync: bool, gate: Gate
    ) -> Operation | None:
        desc.produced = _address(gate.produced)
        desc.consumed = _address(gate.consumed)
        desc.produced_value = gate.produced_value
        desc.consumed_value = gate.consumed_value
        pieces = (CPiece * max(len(gate.pieces), 1))(
            *[CPiece(p.offset, p.count, p.produced_value, p.consumed_value) for p in gate.pieces]
        )
        desc.pieces = ctypes.addressof(pieces) if gate.pieces else None
        desc.n_pieces = len(gate.pieces)
        try:
            status = self._submit(self._handle, reference, ctypes.byref(handle))
        finally:
            desc.produced = desc.consumed = desc.pieces = None
            desc.n_pieces = 0
        return self._launched(status, handle, sync, gate)

    def _launched(
        self, status: int, handle: ctypes.c_void_p, sync: bool, gate: Gate | None
    ) -> Operation | None:
        if status and not (sync and status == _PENDING):
            raise EngineBroken(status)
        if not handle.value:
            return None
        operation = Operation(self._library, handle.value, gate)
        if not sync:
            return operation
        operation.wait()
        return None

    def p2p(
        self,
        *,
        send: bool,
        peer: int,
        pointer: int,
        nbytes: int,
        tag: int,
        dtype: DType,
        sync: bool,
        timeout_us: int,
        gate: Gate | None = None,
    ) -> Operation | None:
        """Queue one send, or one receive (``peer`` -1: from anyone). Raises EngineBroken."""
        desc = CP2PDesc(
            send=int(send),
            peer=peer,
            bytes=nbytes,
            buffer=pointer,
            tag=tag,
            dtype=int(dtype),
            flags=_SYNC if sync else 0,
            timeout_us=timeout_us,
        )
        if gate is not None:
            desc.produced = _address(gate.produced)
            desc.consumed = _address(gate.consumed)
            desc.produced_value = gate.produced_value
            desc.consumed_value = gate.consumed_value
        handle = ctypes.c_void_p()
        status = self._library.mccl_p2p(self._handle, ctypes.byref(desc), ctypes.byref(handle))
        return self._launched(status, handle, sync, gate)

    def error(self) -> NativeError | None:
        """The first error, which is kept; None while all is well."""
        error = CError()
        if self._library.mccl_comm_error(self._handle, ctypes.byref(error)) == Status.OK:
            return None
        return NativeError(
            Failure(error.failure),
            error.culprit,
            error.reporter,
            error.collective,
            error.sequence,
            error.waited_us,
            error.phase.decode(errors="replace"),
            error.message.decode(errors="replace"),
        )

    def abort(self, reason: str) -> None:
        """Break the communicator here and, through the control links, everywhere."""
        self._library.mccl_comm_abort(self._handle, reason.encode()[:700])

    def fail(self, error: NativeError) -> None:
        """Break it with an error found outside the engine."""
        c_error = CError(
            failure=int(error.failure),
            culprit=error.culprit,
            reporter=error.reporter,
            collective=error.collective,
            sequence=error.sequence,
            waited_us=error.waited_us,
            phase=error.phase.encode()[:31],
            message=error.message.encode()[:767],
        )
        self._library.mccl_comm_fail(self._handle, ctypes.byref(c_error))

    def destroy(self) -> None:
        """Say goodbye and close; nothing may be called afterwards."""
        if self._handle:
            handle, self._handle = self._handle, None
            self._library.mccl_comm_destroy(handle)

    def stats(self) -> Stats:
        """Counters since creation or the last reset."""
        stats = CStats()
        self._check(self._library.mccl_comm_get_stats(self._handle, ctypes.byref(stats)))
        return Stats(*[getattr(stats, field[0]) for field in CStats._fields_])

    def reset_stats(self) -> None:
        """Set all counters to zero."""
        self._check(self._library.mccl_comm_reset_stats(self._handle))

    def records(self, capacity: int) -> list[Record]:
        """The newest ``capacity`` entries of the flight recorder, oldest first."""
        array = (CRecord * max(capacity, 1))()
        count = self._library.mccl_comm_get_records(self._handle, array, capacity)
        names = [field[0] for field in CRecord._fields_]
        return [Record(*[getattr(array[i], name) for name in names]) for i in range(count)]

    def peer(self, peer: int) -> PeerState:
        """What is known of ``peer``."""
        state = CPeerState()
        self._check(self._library.mccl_comm_get_peer(self._handle, peer, ctypes.byref(state)))
        return PeerState(
            state.peer,
            bool(state.connected),
            state.silent_us,
            state.issued,
            state.completed,
            state.collective,
        )

    def _check(self, status: int) -> None:
        if status:
            raise EngineBroken(status)

    def __del__(self) -> None:
        self.destroy()


def word_ticket(address: int) -> Ticket:
    """A ticket over the 64-bit word at host address ``address``."""
    ticket = Ticket()
    native_library().mccl_word_ticket(address, ctypes.byref(ticket))
    return ticket


def wait_completion(cursor: int, timeout_us: int) -> int:
    """Block until some operation of this process completes after ``cursor``, or the limit passes.

    Returns the new cursor; start with 0.
    """
    return int(native_library().mccl_wait_completion(cursor, timeout_us))


def reduce_supported(dtype: DType, redop: RedOp) -> bool:
    """Whether the engine reduces ``dtype`` by ``redop``."""
    return bool(native_library().mccl_reduce_supported(int(dtype), int(redop)))
