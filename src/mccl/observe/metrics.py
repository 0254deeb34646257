"""A snapshot of what every group of this process has moved and waited for.

Counters come from the engine and are exact since the group was made or ``reset_metrics``.
Latencies come from the flight recorder's ring, so they cover its newest operations only.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from mccl.engine import NativeComm, Record, Stats
from mccl.errors import collective_name
from mccl.observe.subjects import Subject, all_subjects


@dataclass(frozen=True, slots=True)
class Latency:
    """From the call to completion, in seconds."""

    count: int
    """Completed operations that the flight recorder still holds."""
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class GroupMetrics:
    """One group on this rank. Sizes in bytes, times in seconds."""

    group: str
    description: str
    rank: int
    """Global rank."""
    size: int
    operations: int
    """Operations that ended, failed ones too."""
    failed: int
    bytes_sent: int
    bytes_received: int
    bytes_reduced: int
    parked_bytes: int
    """Point-to-point bytes that no receive has asked for yet."""
    parked_peak: int
    busy: float
    """Time with an operation in progress."""
    blocked_send: float
    blocked_receive: float
    blocked_ticket: float
    """Time in which all that was left to do was waiting: for a peer to take bytes, for bytes, for
    a GPU."""
    reducing: float
    bus_bandwidth: float
    """Bytes that this rank sent or received, whichever is more, a second of ``busy``. For a ring
    all-reduce of S bytes in t seconds on n ranks that is nccl-tests' busbw, 2(n-1)/n · S/t."""
    latency: dict[str, Latency]
    """By operation, "all_reduce"."""


_since: weakref.WeakKeyDictionary[Subject, int] = weakref.WeakKeyDictionary()
"""When a group's metrics were last reset, in µs since the epoch."""


def metrics() -> dict[str, GroupMetrics]:
    """Every group of this process by its name; a group that was shut down is not among them."""
    found = {}
    for subject in all_subjects():
        capacity = subject.communicator.config.record_size

        def inside(native: NativeComm, capacity: int = capacity) -> tuple[Stats, list[Record]]:
            return native.stats(), native.records(capacity)

        seen = subject.communicator.inspect(inside)
        if seen is not None:
            found[subject.name] = _group(subject, *seen)
    return found


def reset_metrics() -> None:
    """Start counting from zero in every group of this process."""
    for subject in all_subjects():
        _since[subject] = time.time_ns() // 1000
        subject.communicator.inspect(lambda native: native.reset_stats())


def _group(subject: Subject, stats: Stats, records: Sequence[Record]) -> GroupMetrics:
    busy = stats.busy_us / 1e6
    most = max(stats.bytes_sent, stats.bytes_received)
    return GroupMetrics(
        group=subject.name,
        description=subject.description,
        rank=subject.global_rank,
        size=subject.communicator.size,
        operations=stats.operations,
        failed=stats.failed,
        bytes_sent=stats.bytes_sent,
        bytes_received=stats.bytes_received,
        bytes_reduced=stats.bytes_reduced,
        parked_bytes=stats.parked_bytes,
        parked_peak=stats.parked_peak,
        busy=busy,
        blocked_send=stats.blocked_send_us / 1e6,
        blocked_receive=stats.blocked_receive_us / 1e6,
        blocked_ticket=stats.blocked_ticket_us / 1e6,
        reducing=stats.reduce_us / 1e6,
        bus_bandwidth=most / busy if busy > 0 else 0.0,
        latency=latencies(records, _since.get(subject, 0)),
    )


def latencies(records: Sequence[Record], since_us: int = 0) -> dict[str, Latency]:
    """By operation, over the completed records submitted after ``since_us``."""
    taken: dict[str, list[int]] = {}
    for record in records:
        if record.state == 2 and record.submitted_us >= since_us:
            name = collective_name(record.collective) or "unknown"
            taken.setdefault(name, []).append(record.completed_us - record.submitted_us)
    return {
        name: Latency(len(times), _quantile(times, 0.5) / 1e6, _quantile(times, 0.99) / 1e6)
        for name, times in taken.items()
    }


def _quantile(values: list[int], share: float) -> int:
    # Nearest rank: the smallest value that `share` of all do not exceed.
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)]
