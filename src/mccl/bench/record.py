"""The result file of a benchmark: machine facts and raw samples, written before any table.

A record holds *cases*. A case is one thing measured under one name with a set of labels
(collective, ranks, bytes, …) and its samples grouped by *round*: rounds of all contestants are
interleaved, so the spread over rounds shows how much the machine itself wavered.
"""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mccl.bench.machine import Machine, describe_machine
from mccl.errors import UsageError

SCHEMA = "mccl-bench/1"

Label = str | int | float | bool | None


@dataclass
class Case:
    """Samples of one contestant under one set of conditions.

    ``rounds[i]`` are the samples of round ``i`` in ``unit``; ``facts`` are numbers that are no
    samples (wrong elements, CPU seconds, bytes moved).
    """

    series: str
    labels: dict[str, Label]
    rounds: list[list[float]]
    unit: str = "s"
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def samples(self) -> list[float]:
        """All rounds pooled."""
        return [sample for samples in self.rounds for sample in samples]

    @property
    def median(self) -> float:
        """Median of the pooled samples, in ``unit``; nan where there are none."""
        return statistics.median(self.samples) if self.samples else float("nan")

    @property
    def spread(self) -> tuple[float, float]:
        """Smallest and largest median of a round (of the samples when there is one round)."""
        medians = [statistics.median(samples) for samples in self.rounds if samples]
        values = medians if len(medians) > 1 else self.samples
        return (min(values), max(values)) if values else (float("nan"), float("nan"))

    def matches(self, **labels: Label) -> bool:
        """Whether every given label has the given value."""
        return all(self.labels.get(name) == value for name, value in labels.items())


@dataclass
class Record:
    """One run of one benchmark command."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    cases: list[Case] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machine: Machine = field(default_factory=describe_machine)
    command: str = field(default_factory=lambda: shlex.join(["mccl", *sys.argv[1:]]))
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    schema: str = SCHEMA

    def find(self, series: str | None = None, **labels: Label) -> list[Case]:
        """Cases of ``series`` (any where None) with these labels."""
        return [
            case
            for case in self.cases
            if (series is None or case.series == series) and case.matches(**labels)
        ]

    def one(self, series: str, **labels: Label) -> Case | None:
        """The only case of ``series`` with these labels, None where it was not measured."""
        found = self.find(series, **labels)
        if len(found) > 1:
            raise UsageError(f"{len(found)} cases of {series!r} match {labels}; expected one")
        return found[0] if found else None

    def labels(self, name: str) -> list[Any]:
        """The different values of a label, in order of first appearance."""
        return list(dict.fromkeys(case.labels[name] for case in self.cases if name in case.labels))

    def add_rounds(self, cases: Iterable[Case]) -> None:
        """Merge the cases of one round: known ones gain a round, new ones are appended."""
        for case in cases:
            known = self.one(case.series, **case.labels) if self.cases else None
            if known is None:
                self.cases.append(case)
                continue
            known.rounds.extend(case.rounds)
            for name, value in case.facts.items():
                known.facts[name] = known.facts.get(name, 0.0) + value

    def save(self, path: Path) -> Path:
        """Write the record as JSON, creating the folder; returns ``path``."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")
        return path


def load(path: Path) -> Record:
    """Read a record.

    Raises:
        UsageError: the file is no record of this schema.
    """
    try:
        data = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} is not JSON ({error}); expected a file of mccl bench") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise UsageError(f"{path} has schema {found!r}; this version reads {SCHEMA!r}")
    data["machine"] = Machine(**data["machine"])
    data["cases"] = [Case(**case) for case in data["cases"]]
    return Record(**data)


def default_path(record: Record, folder: Path) -> Path:
    """A file name that sorts by kind, then time: ``compare-20261201T034500.json``."""
    stamp = datetime.fromisoformat(record.date).strftime("%Y%m%dT%H%M%S")
    return folder / f"{record.kind}-{stamp}.json"
