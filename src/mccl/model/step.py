"""A data-parallel training step: how much of the communication hides behind the backward pass.

DDP starts the all-reduce of a bucket when its last gradient is there, and buckets travel one
after the other. With K buckets that fill at equal intervals of the backward pass, bucket i of
1..K is ready at ``forward + backward i/K``; it leaves when it is ready and the one before has
arrived. What sticks out behind the backward pass is exposed (Li et al., VLDB 2020; paper §2,
§5.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

BACKWARD_SHARE = 2 / 3
"""Of a step's compute: the backward pass does two matrix products for each of the forward's."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One step on one host: ``compute`` seconds without communication, of which the share
    ``backward`` is the backward pass; ``gradient`` bytes in all; ``samples`` a step."""

    name: str
    compute: float
    gradient: int
    samples: int = 1
    backward: float = BACKWARD_SHARE

    def __post_init__(self) -> None:
        if self.compute <= 0 or self.gradient <= 0 or self.samples < 1:
            raise ValueError(f"compute, gradient and samples must be above 0, got {self}")
        if not 0 < self.backward <= 1:
            raise ValueError(f"backward is a share of compute in (0, 1], got {self.backward}")

    def buckets(self, bucket: int) -> list[int]:
        """Bytes of each bucket: as many as it takes, all alike. (DDP closes a bucket with the
        parameter that passes the cap, so a model's own layout may leave a smaller last one.)"""
        count = -(-self.gradient // bucket)
        return [-(-self.gradient // count)] * count


VIT_113M = Workload("vit-113m", 1.290, 454_000_000, samples=256)
"""The paper's Vision Transformer, batch 256 on one M4 Max (§5.2)."""

RESNET_31M = Workload("resnet-31m", 0.227, 126_000_000, samples=64)
"""The paper's GroupNorm ResNet, batch 64 on one M4 Max (§5.2, §8)."""

SYNTHETIC = Workload("synthetic", 1.09, 18 * (25 << 20), backward=1.0)
"""Eighteen 25 MB buckets over 1.09 s of GPU work (§5.1)."""

WORKLOADS = {w.name: w for w in (VIT_113M, RESNET_31M, SYNTHETIC)}


@dataclass(frozen=True, slots=True)
class Step:
    """``compute`` and ``communication`` as if alone, ``exposed``: what is not hidden; seconds."""

    compute: float
    communication: float
    exposed: float

    @property
    def seconds(self) -> float:
        """Of the whole step."""
        return self.compute + self.exposed

    @property
    def hidden(self) -> float:
        """Share of the communication that hides."""
        return 1 - self.exposed / self.communication if self.communication else 1.0

    @property
    def efficiency(self) -> float:
        """Throughput a host against that of one host alone."""
        return self.compute / self.seconds


def step(workload: Workload, seconds: Sequence[float], *, accumulate: int = 1) -> Step:
    """A step whose buckets take ``seconds`` to all-reduce, in the order they fill.

    ``accumulate``: so many forward and backward passes for one exchange (gradient
    accumulation); the result is that of all of them together.
    """
    compute = workload.compute * accumulate
    backward = workload.compute * workload.backward
    wire = compute - backward
    for number, taken in enumerate(seconds, 1):
        ready = compute - backward + backward * number / len(seconds)
        wire = max(wire, ready) + taken
    exposed = max(0.0, wire - compute) if seconds else 0.0
    return Step(compute, float(sum(seconds)), exposed)
