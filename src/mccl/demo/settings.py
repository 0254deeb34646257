"""What the demo is to run, and what came of it; both travel between processes as JSON."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One training run. `batch` is the global batch, shared by the ranks."""

    data: str = "auto"
    size: int = 16
    width: int = 32
    blocks: tuple[int, ...] = (1, 1, 1, 1)
    steps: int = 120
    batch: int = 128
    rate: float = 2e-3
    bucket_mb: float = 1.0
    seed: int = 1
    backend: str = "mccl"
    device: str = "cpu"
    threads: int = 1
    title: str = ""
    outcome: str = ""
    """File that rank 0 writes the outcome to."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Settings:
        values = json.loads(path.read_text())
        return cls(**{**values, "blocks": tuple(values["blocks"])})


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the network did during the timed steps; all of it as seen by rank 0.

    Bytes are gradient bytes handed to all-reduce; times are seconds. `flight` is the time in which
    at least one bucket was on its way (waiting for the other rank to get there included), `exposed`
    the part of it that backward had to wait for. `alone` is one step's gradients all-reduced after
    training, with nothing else going on. `sent_bytes` is what the engine counted; None without one.
    """

    collectives: int = 0
    payload_bytes: int = 0
    sent_bytes: int | None = None
    flight: float = 0.0
    exposed: float = 0.0
    alone: float = 0.0

    @property
    def hidden(self) -> float:
        """Share of the flight that was hidden behind computing, 0 to 1."""
        return max(0.0, 1 - self.exposed / self.flight) if self.flight else 0.0


def bus_bandwidth(nbytes: float, seconds: float, ranks: int) -> float:
    """Bytes/s that each link carried: nccl-tests' busbw of all-reduce, S/t * 2(n-1)/n."""
    return nbytes * 2 * (ranks - 1) / ranks / seconds if seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run ended with. `digests` has one SHA-256 of all weights for each rank."""

    ranks: int
    data: str
    parameters: int
    buckets: int
    steps: int
    batch: int
    seconds: float
    losses: list[float]
    accuracy: float
    digests: list[str]
    device: str
    backend: str
    step_seconds: float
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def samples_per_second(self) -> float:
        return self.batch / self.step_seconds

    @property
    def identical(self) -> bool:
        """Whether all ranks ended with the same bits."""
        return len(set(self.digests)) == 1

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Outcome:
        values = json.loads(path.read_text())
        return cls(**{**values, "traffic": Traffic(**values["traffic"])})
