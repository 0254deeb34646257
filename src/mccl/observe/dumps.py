"""Reading flight records that several ranks wrote.

A dump comes from another process, maybe another machine, so nothing but plain values is
unpickled. Dumps of torch's NCCL and Gloo groups have the same schema and are read as well.
"""

from __future__ import annotations

import ast
import io
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class DumpError(ValueError):
    """A file that is no flight record; the text says which and why."""


@dataclass(frozen=True)
class Call:
    """One collective or message as one rank saw it; times in seconds since the epoch."""

    sequence: int
    """Its number in the group; 0 for messages."""
    name: str
    dtype: str
    sizes: tuple[int, ...]
    """Elements of the input."""
    count: int | None
    root: int | None
    state: str
    failed: bool
    created: float
    started: float | None
    completed: float | None
    waiting_for: int | None
    """Global rank."""
    tag: int
    blocked_receive: float | None
    """Seconds it waited for bytes from peers."""
    caller: str | None
    """Innermost frame of the user's program."""

    @property
    def done(self) -> bool:
        """Whether it completed well."""
        return self.state == "completed" and not self.failed

    @property
    def shown(self) -> str:
        """As a person reads it: ``all_reduce of 10 Float``."""
        size = self.count if self.count is not None else sum(self.sizes)
        text = self.name if not size else f"{self.name} of {size} {self.dtype}"
        rooted = self.name in ("broadcast", "reduce", "gather", "scatter")
        return f"{text} (root {self.root})" if rooted and self.root is not None else text


@dataclass(frozen=True)
class Heard:
    """What a rank last heard of a peer."""

    issued: int
    completed: int
    silent: float
    collective: str | None


@dataclass(frozen=True)
class Failure:
    """What broke the group, as one rank knows it."""

    kind: str
    culprit: int | None
    reporter: int | None
    message: str


@dataclass(frozen=True)
class View:
    """One group as one rank saw it."""

    rank: int
    time: float | None
    """When the dump was made, by that rank's clock."""
    collectives: dict[int, Call]
    messages: list[Call]
    heard: dict[int, Heard]
    failure: Failure | None


@dataclass
class Group:
    """One group as all dumps together show it."""

    name: str
    description: str
    ranks: tuple[int, ...]
    """Global ranks of its members."""
    views: dict[int, View] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Its name, with what it is for where that is known."""
        plain = self.description in ("", "undefined")
        return f"'{self.name}'" if plain else f"'{self.name}' ({self.description})"


def read(paths: Iterable[Path]) -> list[Group]:
    """The groups in these dumps; a folder stands for every file in it.

    Raises DumpError for a file that is no flight record, for two dumps of one rank and when
    there is none at all.
    """
    files: list[Path] = []
    for path in paths:
        files += sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    files = [file for file in files if not file.name.startswith(".")]
    if not files:
        raise DumpError("there is no dump; pass files, or a folder that MCCL_DUMP_DIR named")
    groups: dict[tuple[str, tuple[int, ...]], Group] = {}
    by_rank: dict[int, Path] = {}
    for file in files:
        record = load(file)
        rank = _rank(record, file)
        if rank in by_rank:
            raise DumpError(f"{by_rank[rank]} and {file} are both of rank {rank}; pass one")
        by_rank[rank] = file
        try:
            _merge(groups, rank, record)
        except (KeyError, TypeError, ValueError, IndexError, SyntaxError) as error:
            raise DumpError(
                f"{file} is not a flight record of schema 2.x: {type(error).__name__}: {error}"
            ) from error
    return list(groups.values())


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}; a dump holds plain values only")


def load(file: Path) -> dict[str, Any]:
    """One dump. Raises DumpError."""
    try:
        record = _Plain(io.BytesIO(file.read_bytes())).load()
    except OSError as error:
        raise DumpError(f"{file} cannot be read: {error}") from error
    except Exception as error:  # a broken pickle raises nearly anything
        raise DumpError(f"{file} is not a flight record: {error}") from error
    if not isinstance(record, dict) or "entries" not in record or "pg_config" not in record:
        raise DumpError(f"{file} is not a flight record: it has no entries")
    return record


def _rank(record: dict[str, Any], file: Path) -> int:
    if isinstance(record.get("rank"), int):
        return int(record["rank"])
    digits = file.name[len(file.name.rstrip("0123456789")) :]
    if not digits:
        raise DumpError(f"{file} does not say whose it is; expected a name that ends in the rank")
    return int(digits)


def _merge(
    groups: dict[tuple[str, tuple[int, ...]], Group], rank: int, record: dict[str, Any]
) -> None:
    at = record.get("mccl", {}).get("time_ns")
    for name, config in record["pg_config"].items():
        ranks = tuple(int(r) for r in ast.literal_eval(config["ranks"]))
        group = groups.setdefault((name, ranks), Group(name, config["desc"], ranks))
        status = record.get("pg_status", {}).get(name, {}).get("mccl", {})
        calls = [_call(entry) for entry in record["entries"] if entry["process_group"][0] == name]
        group.views[rank] = View(
            rank,
            None if at is None else at / 1e9,
            {call.sequence: call for call in calls if call.sequence},
            [call for call in calls if not call.sequence],
            {
                int(p["rank"]): Heard(
                    p["issued"], p["completed"], p["silent_us"] / 1e6, p["collective"]
                )
                for p in status.get("peers", ())
                if p["connected"] or p["issued"]
            },
            _failure(status.get("error")),
        )


def _failure(error: dict[str, Any] | None) -> Failure | None:
    if error is None:
        return None
    return Failure(error["failure"], error["culprit"], error["reporter"], error["message"])


def _call(entry: dict[str, Any]) -> Call:
    extra = entry.get("mccl", {})
    frames = entry.get("frames") or [None]
    frame = frames[0]
    blocked = extra.get("blocked_receive_us")
    return Call(
        sequence=0 if entry.get("is_p2p") else int(entry["collective_seq_id"]),
        name=str(entry["profiling_name"]).split(":", 1)[1],
        dtype=str((entry["input_dtypes"] or ["?"])[0]),
        sizes=tuple(_numel(shape) for shape in entry["input_sizes"]),
        count=extra.get("count") if not entry.get("is_p2p") else None,
        root=extra.get("root"),
        state=str(entry["state"]),
        failed=bool(extra.get("failed", False)),
        created=entry["time_created_ns"] / 1e9,
        started=_seconds(entry.get("time_discovered_started_ns")),
        completed=_seconds(entry.get("time_discovered_completed_ns")),
        waiting_for=extra.get("waiting_for"),
        tag=int(extra.get("tag", 0)),
        blocked_receive=None if blocked is None else blocked / 1e6,
        caller=frame and f"{frame['name']} ({frame['filename']}:{frame['line']})",
    )


def _seconds(nanoseconds: int | None) -> float | None:
    return None if nanoseconds is None else nanoseconds / 1e9


def _numel(shape: Iterable[int]) -> int:
    product = 1
    for extent in shape:
        product *= int(extent)
    return product
