"""Requests of every shape, for every collective and algorithm."""

from __future__ import annotations

import random
from collections.abc import Iterator

from mccl.plans import Collective, Plan, Request, build
from mccl.plans.choose import BUILDERS

VECTOR = (
    Collective.REDUCE_SCATTER,
    Collective.ALL_GATHER,
    Collective.GATHER,
    Collective.SCATTER,
    Collective.ALL_TO_ALL,
)
"""Collectives whose ranks may contribute or receive different sizes."""

ALL = [(c, name) for c, names in BUILDERS.items() for name in names]


def awkward_counts(world: int) -> list[int]:
    """0, 1, around the world size, and a prime above it that divides by nothing."""
    prime = next(p for p in range(world + 2, 200) if all(p % d for d in range(2, p)))
    return sorted({0, 1, world - 1, world, world + 1, prime})


def plans_of(
    collective: Collective, algorithm: str, world: int, request: Request | list[Request]
) -> list[Plan]:
    """The plans of all ranks."""
    asked = [request] * world if isinstance(request, Request) else request
    return [build(collective, algorithm, world, r, asked[r]) for r in range(world)]


def switches(world: int, rng: random.Random | None = None) -> tuple[tuple[int, ...], ...]:
    """Groups of uneven sizes, or, with ``rng``, random ones in random order."""
    ranks = list(range(world))
    size = max(1, round(world**0.5))
    if rng is not None:
        rng.shuffle(ranks)
        size = rng.randint(1, world)
    cut = [ranks[i : i + size] for i in range(0, world, size)]
    return tuple(tuple(group) for group in cut)


def ragged(
    collective: Collective, world: int, rng: random.Random, largest: int = 4
) -> list[Request]:
    """One request a rank, with random sizes (many of them 0), root and list forms."""
    inputs, outputs = rng.random() < 0.5, rng.random() < 0.5
    root = rng.randrange(world)
    shape = {"root": root, "list_input": inputs, "list_output": outputs}

    def size() -> int:
        return rng.choice((0, rng.randint(0, largest), rng.randint(0, largest)))

    if collective not in VECTOR:
        count = rng.randint(0, largest * world)
        return [Request(sizes=count, groups=switches(world, rng), **shape)] * world
    if collective is not Collective.ALL_TO_ALL:
        return [Request(sizes=tuple(size() for _ in range(world)), **shape)] * world
    matrix = [tuple(size() for _ in range(world)) for _ in range(world)]
    return [
        Request(matrix[r], recv_sizes=tuple(row[r] for row in matrix), **shape)
        for r in range(world)
    ]


def list_forms(collective: Collective) -> Iterator[dict[str, bool]]:
    """The list forms a collective has beyond the plain one."""
    if collective in (Collective.REDUCE_SCATTER, Collective.SCATTER):
        yield {"list_input": True}
    elif collective in (Collective.ALL_GATHER, Collective.GATHER):
        yield {"list_output": True}
    elif collective is Collective.ALL_TO_ALL:
        yield {"list_input": True, "list_output": True}
