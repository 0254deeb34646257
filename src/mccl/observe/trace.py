"""The flight recorder's operations as a Chrome trace, for Perfetto and beside torch.profiler.

Times are microseconds since the Unix epoch. torch.profiler writes its own relative to a
``baseTimeNanoseconds`` in the file; ``beside`` puts both on its clock in one file. A group has
one track; operations that overlap get tracks below it, since events of one track must nest.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from mccl.observe.record import flight_record

FIRST_TRACK = 1 << 20
"""Thread number of the first track: none that a system gives to a thread of the process."""


def export_trace(path: str | os.PathLike[str], beside: str | os.PathLike[str] | None = None) -> int:
    """Write what the flight recorder holds; returns how many operations that are.

    ``beside`` is a trace that ``torch.profiler`` exported on this rank: its events are written
    too. Raises OSError when a file cannot be read or written.
    """
    base_us = 0.0
    merged: dict[str, Any] = {"traceEvents": []}
    if beside is not None:
        merged = json.loads(Path(beside).read_text())
        base_us = merged.get("baseTimeNanoseconds", 0) / 1e3
    record = flight_record("trace")
    events = _events(record, base_us)
    merged["traceEvents"] = [*merged["traceEvents"], *events]
    merged.setdefault("displayTimeUnit", "ms")
    Path(path).write_text(json.dumps(merged))
    return sum(event["ph"] == "X" for event in events)


def _events(record: dict[str, Any], base_us: float) -> list[dict[str, Any]]:
    pid = record["mccl"]["pid"]
    lanes: dict[tuple[str, str], list[float]] = {}
    tracks: dict[tuple[str, str, int], int] = {}
    events = []
    for entry in record["entries"]:
        begun = (entry["time_discovered_started_ns"] or entry["time_created_ns"]) / 1e3
        ended = (entry["time_discovered_completed_ns"] or record["mccl"]["time_ns"]) / 1e3
        group: tuple[str, str] = tuple(entry["process_group"])
        free = lanes.setdefault(group, [])
        lane = next((i for i, until in enumerate(free) if until <= begun), len(free))
        free[lane:lane + 1] = [ended]  # fmt: skip
        track = tracks.setdefault((*group, lane), FIRST_TRACK + len(tracks))
        events.append(
            {
                "ph": "X",
                "cat": "mccl",
                "name": entry["profiling_name"],
                "pid": pid,
                "tid": track,
                "ts": begun - base_us,
                "dur": max(ended - begun, 0.0),
                "args": _details(entry),
            }
        )
    return [*(_name(pid, track, record["rank"], key) for key, track in tracks.items()), *events]


def _name(pid: int, track: int, rank: int | None, key: tuple[str, str, int]) -> dict[str, Any]:
    name, description, lane = key
    text = f"mccl rank {rank}, group {name} ({description})" + (f" +{lane}" if lane else "")
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": track, "args": {"name": text}}


def _details(entry: dict[str, Any]) -> dict[str, Any]:
    extra = entry["mccl"]
    queued = (entry["time_discovered_started_ns"] or entry["time_created_ns"]) - entry[
        "time_created_ns"
    ]
    return {
        "sequence": entry["collective_seq_id"],
        "state": "failed" if extra["failed"] else entry["state"],
        "input": entry["input_sizes"],
        "dtype": entry["input_dtypes"][0],
        "queued_us": queued / 1e3,
        **{name: extra[name] for name in extra if name.endswith("_us") or name.startswith("bytes")},
    }
