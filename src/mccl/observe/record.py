"""The engine's rings of all groups as one flight record in PyTorch's schema, version 2.10.

PyTorch's own analyzer (``torchfrtrace``) reads it; what its schema has no room for stands under
the key ``mccl`` of the record, of each group's status and of each entry. Times are nanoseconds
since the Unix epoch. The engine knows the size of a whole payload, not each rank's share, so
shares are given as equal; where the payload does not divide evenly the operation is named
``…_v`` and the share is unknown (``[0]``).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from typing import Any

from mccl.config import Launch
from mccl.engine import DType, NativeComm, NativeError, PeerState, Record
from mccl.errors import collective_name
from mccl.observe.stacks import Frame
from mccl.observe.subjects import Subject, all_subjects

VERSION = "2.10"

DTYPE_NAMES: dict[int, tuple[str, int]] = {
    DType.U8: ("Byte", 1),
    DType.I8: ("Char", 1),
    DType.I16: ("Short", 2),
    DType.I32: ("Int", 4),
    DType.I64: ("Long", 8),
    DType.F16: ("Half", 2),
    DType.BF16: ("BFloat16", 2),
    DType.F32: ("Float", 4),
    DType.F64: ("Double", 8),
    DType.BOOL: ("Bool", 1),
    DType.C64: ("ComplexFloat", 8),
    DType.C128: ("ComplexDouble", 16),
}
"""PyTorch's name and the bytes of an element."""

STATES = ("scheduled", "started", "completed", "failed")

FIRST_MESSAGE = 1 << 32
"""Number of a group's first message. PyTorch's analyzer takes a collective and a message of equal
numbers for one coalesced operation, so messages count from where no collective gets to."""


def look(subject: Subject) -> Look | None:
    """What the group's engine knows now; None once the group is shut down."""
    capacity = subject.communicator.config.record_size
    size, rank = subject.communicator.size, subject.communicator.rank

    def inside(native: NativeComm) -> Look:
        peers = [native.peer(peer) for peer in range(size) if peer != rank]
        return Look(native.records(capacity), native.error(), peers)

    return subject.communicator.inspect(inside)


class Look:
    """One look into a group's engine."""

    def __init__(
        self, records: list[Record], error: NativeError | None, peers: list[PeerState]
    ) -> None:
        self.records = records
        self.error = error
        self.peers = peers


def flight_record(reason: str = "asked for") -> dict[str, Any]:
    """The flight record of every group of this process; plain dicts, lists, numbers and texts."""
    now_ns = time.time_ns()
    seen = [(subject, look(subject)) for subject in all_subjects()]
    present = [(subject, found) for subject, found in seen if found is not None]
    entries: list[dict[str, Any]] = []
    skipped = 0
    for number, (subject, found) in enumerate(present):
        entries += _entries(subject, found.records, number)
        skipped += _forgotten(found.records)
    entries.sort(key=lambda entry: int(entry["time_created_ns"]))
    for place, entry in enumerate(entries):
        # Ranks that run the same program number alike, also once the rings have forgotten.
        entry["record_id"] = skipped + place
    first = present[0][0] if present else None
    launched = Launch.from_env()
    return {
        "version": VERSION,
        "comm_lib_version": "mccl",
        "rank": launched.rank if first is None else first.global_rank,
        "world_size": launched.world_size,
        "pg_config": {s.name: _config(s) for s, _ in present},
        "pg_status": {s.name: _status(s, found) for s, found in present},
        "entries": entries,
        "mccl": {
            "reason": reason,
            "time_ns": now_ns,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        },
    }


def _forgotten(records: Iterable[Record]) -> int:
    return next((record.sequence - 1 for record in records if record.sequence), 0)


def _config(subject: Subject) -> dict[str, str]:
    ranks = str(list(subject.communicator.global_ranks))
    return {"name": subject.name, "desc": subject.description, "ranks": ranks}


def _status(subject: Subject, found: Look) -> dict[str, Any]:
    collectives = [record for record in found.records if record.sequence]

    def newest(*states: int) -> int:
        return max((r.sequence for r in collectives if r.state in states), default=-1)

    return {
        "last_enqueued_collective": newest(0, 1, 2, 3),
        "last_started_collective": newest(1, 2, 3),
        "last_completed_collective": newest(2),
        "mccl": {
            "error": _error(subject, found.error),
            "peers": [_peer(subject, peer) for peer in found.peers],
        },
    }


def _error(subject: Subject, error: NativeError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {
        "failure": error.failure.name,
        "culprit": _global(subject, error.culprit),
        "reporter": _global(subject, error.reporter),
        "collective": collective_name(error.collective),
        "sequence": error.sequence,
        "waited_us": error.waited_us,
        "phase": error.phase,
        "message": error.message,
    }


def _peer(subject: Subject, peer: PeerState) -> dict[str, Any]:
    return {
        "rank": _global(subject, peer.peer),
        "connected": peer.connected,
        "silent_us": peer.silent_us,
        "issued": peer.issued,
        "completed": peer.completed,
        "collective": collective_name(peer.collective),
    }


def _global(subject: Subject, rank: int) -> int | None:
    return subject.communicator.global_ranks[rank] if rank >= 0 else None


def _entries(subject: Subject, records: list[Record], number: int) -> list[dict[str, Any]]:
    messages = sum(record.sequence == 0 for record in records)
    stacks = iter(subject.stacks.of_messages(messages) if subject.stacks else [])
    done: list[dict[str, Any]] = []
    last_collective, message = _forgotten(records), FIRST_MESSAGE
    for record in records:
        frames: list[Frame] = []
        if record.sequence:
            last_collective = record.sequence
            if subject.stacks is not None:
                frames = subject.stacks.of_collective(record.tag)
        else:
            message += 1
            frames = next(stacks, [])
        entry = _entry(subject, record, frames)
        entry.update(
            pg_id=number,
            collective_seq_id=last_collective,
            p2p_seq_id=0 if record.sequence else message,
            op_id=last_collective if record.sequence else message,
        )
        done.append(entry)
    return done


def _entry(subject: Subject, record: Record, frames: list[Frame]) -> dict[str, Any]:
    name, given, taken = shapes(record, subject.communicator.size, subject.communicator.rank)
    dtype = DTYPE_NAMES[record.dtype][0]
    started, completed = record.started_us or None, record.completed_us or None
    finished = record.state in (2, 3)
    return {
        "frames": frames,
        "process_group": (subject.name, subject.description),
        "profiling_name": f"mccl:{name}",
        "time_created_ns": record.submitted_us * 1000,
        "time_discovered_started_ns": None if started is None else started * 1000,
        "time_discovered_completed_ns": None if completed is None else completed * 1000,
        "duration_ms": (completed - started) / 1000 if started and completed else None,
        "input_sizes": [given],
        "input_dtypes": [dtype],
        "output_sizes": [taken],
        "output_dtypes": [dtype],
        # The schema has no word for a failed operation; it never completed.
        "state": STATES[record.state] if record.state < 3 else STATES[1 if started else 0],
        "retired": finished,
        "is_p2p": record.sequence == 0,
        "timeout_ms": int(subject.communicator.timeout.total_seconds() * 1000),
        "mccl": {
            "failed": record.state == 3,
            "count": record.count,
            "root": record.root,
            "tag": 0 if record.sequence else record.tag,
            "waiting_for": _global(subject, record.waiting_for),
            "bytes_sent": record.bytes_sent,
            "bytes_received": record.bytes_received,
            "blocked_send_us": record.blocked_send_us,
            "blocked_receive_us": record.blocked_receive_us,
            "blocked_ticket_us": record.blocked_ticket_us,
            "reduce_us": record.reduce_us,
        },
    }


def shapes(record: Record, size: int, rank: int) -> tuple[str, list[int], list[int]]:
    """An operation's name, the shape of its input and that of its output, in elements."""
    name, count = collective_name(record.collective) or "unknown", record.count
    if name in ("send", "recv"):
        elements = [count // DTYPE_NAMES[record.dtype][1]]
        shown = f"send {rank}->{record.root}" if name == "send" else f"recv {rank}<-{record.root}"
        return shown, elements, elements
    if name in ("reduce_scatter", "all_gather") and count % size:
        return (name + "_v", *(([count], [0]) if name == "reduce_scatter" else ([0], [count])))
    if name in ("reduce_scatter", "scatter"):
        return name, [count], [count // size]
    if name in ("all_gather", "gather"):
        return name, [count // size], [count]
    return name, [count], [count]
