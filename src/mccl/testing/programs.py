"""What the ranks of a storm run: collectives, or DDP training, whose every result is checked.

Collectives are of integers, so that one wrong bit shows. Gradients are floats of small whole
numbers: where the number of ranks is a power of two, sums are exact, and a wrong bit shows unless
rounding mends it. Elsewhere DDP's own division rounds, and the last bits are not judged.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from mccl.errors import MCCLError
from mccl.testing.faults import Fault, Injector

STEPS = 12
"""Rounds of one trial."""

SIZES = (1, 17, 1000, 20_000, 300_000)
"""Elements a rank and collective. One round near the end is of the last size, so that any byte
below ``BYTES`` passes, and rounds are left in which the survivors notice."""

BYTES = 50_000
"""Bytes that every rank sends on some link after any round it begins before the last three."""

_reduce_scatter: Callable[..., object] = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)
"""Its name since torch 2.13, and before."""


@dataclass(frozen=True)
class Outcome:
    """What one rank has to say at the end."""

    completed: int
    """Rounds that returned."""
    wrong: tuple[str, ...] = ()
    """Rounds that handed out a wrong result."""
    error: str | None = None
    """Class of the error that ended it."""
    peer: int | None = None
    """The culprit it names."""
    at: float = 0.0
    """When it was raised, in seconds since the Unix epoch."""
    text: str = ""
    kept: bool = True
    """Whether the next call raised too."""


def play(
    rank: int,
    world: int,
    program: str,
    seed: str,
    fault: Fault,
    marker: Path,
    unplug: Callable[[], object] | None = None,
) -> Outcome:
    """Run one rank of a trial; the fault happens to it if it is the one (see ``Injector``)."""
    rounds = PROGRAMS[program](rank, world, random.Random(seed))
    completed, wrong = 0, []
    with Injector(fault, rank, marker, unplug):
        try:
            for name, good in rounds:
                completed += 1
                if not good:
                    wrong.append(f"#{completed} {name}")
        except RuntimeError as error:
            at = time.time()
            again = _again()
            named = error if isinstance(error, MCCLError) else again
            peer = named.peer if isinstance(named, MCCLError) else None
            kind = type(error).__name__
            kept = again is not None
            return Outcome(completed, tuple(wrong), kind, peer, at, str(error), kept)
    return Outcome(completed, tuple(wrong))


def _again() -> Exception | None:
    """What the next call raises."""
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError as error:
        return error
    return None


Rounds = Iterator[tuple[str, bool]]


def collectives(rank: int, world: int, chance: random.Random) -> Rounds:
    """Random collectives of random sizes, the same on every rank."""
    for step in range(STEPS):
        operation = chance.choice((all_reduce, all_gather, reduce_scatter, all_to_all))
        size = SIZES[-1] if step == STEPS - 3 else chance.choice(SIZES)
        yield operation.__name__, operation(rank, world, size)


def _pattern(size: int, factor: int) -> torch.Tensor:
    return (torch.arange(size) % 13).to(torch.int32) * factor


def all_reduce(rank: int, world: int, size: int) -> bool:
    """Whether a sum is right."""
    tensor = _pattern(size, rank + 1)
    dist.all_reduce(tensor)
    return torch.equal(tensor, _pattern(size, world * (world + 1) // 2))


def all_gather(rank: int, world: int, size: int) -> bool:
    """Whether every rank's tensor arrives."""
    outputs = [torch.zeros(size, dtype=torch.int32) for _ in range(world)]
    dist.all_gather(outputs, _pattern(size, rank + 1))
    return all(torch.equal(got, _pattern(size, i + 1)) for i, got in enumerate(outputs))


def reduce_scatter(rank: int, world: int, size: int) -> bool:
    """Whether this rank's part of a sum is right."""
    output = torch.zeros(size, dtype=torch.int32)
    whole = torch.cat([_pattern(size, (rank + 1) * (part + 1)) for part in range(world)])
    _reduce_scatter(output, whole)
    return torch.equal(output, _pattern(size, world * (world + 1) // 2 * (rank + 1)))


def all_to_all(rank: int, world: int, size: int) -> bool:
    """Whether every rank's part for this one arrives."""
    output = torch.zeros(world * size, dtype=torch.int32)
    parts = [_pattern(size, 10 * rank + other) for other in range(world)]
    dist.all_to_all_single(output, torch.cat(parts))
    return torch.equal(
        output, torch.cat([_pattern(size, 10 * other + rank) for other in range(world)])
    )


class _Weights(torch.nn.Module):
    """Parameters whose gradient is the factor given to ``forward``."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        sizes = [*(chance.choice(SIZES) for _ in range(3)), SIZES[-2]]
        self.weights = torch.nn.ParameterList([torch.zeros(size) for size in sizes])

    def forward(self, factor: float) -> torch.Tensor:
        return torch.stack([weight.sum() * factor for weight in self.weights]).sum()


def training(rank: int, world: int, chance: random.Random) -> Rounds:
    """DDP: its first broadcast and every step's averaged gradients are checked."""
    model = DistributedDataParallel(_Weights(chance), bucket_cap_mb=1)
    for step in range(STEPS):
        model.zero_grad()
        model(2.0 * world * (rank + 1) * (step + 1)).backward()
        expected = world * (world + 1.0) * (step + 1)
        yield "step", all(_right(p, expected, world) for p in model.parameters())


def _right(parameter: torch.Tensor, gradient: float, world: int) -> bool:
    found = parameter.grad
    if found is None:
        return False
    # DDP multiplies by fp32(1 / world) before it adds. That is exact for powers of two; for others
    # the factor, each product and each sum are off by up to 6e-8 (an ulp's half), and seldom all
    # one way. So 1e-6 passes what rounding does and hides a wrong bit in the last four of 24.
    off = 0.0 if world & (world - 1) == 0 else 1e-6 * gradient
    # The weights are what DDP's first broadcast delivered: nothing changes them.
    return bool(((found - gradient).abs() <= off).all() and (parameter == 0).all())


PROGRAMS: dict[str, Callable[[int, int, random.Random], Rounds]] = {
    "collectives": collectives,
    "training": training,
}
