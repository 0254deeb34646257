"""A table for ``plans.choose`` from a modelled network.

A job has one world size, so a table is made for that one: for each size of a payload the
simulated times of the algorithms, then as few rules as keep every size within ``TOLERANCE`` of its
best algorithm. ``plans.choose`` then reads it like the default table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from mccl.model.network import Groups, Network, blocks
from mccl.model.predict import all_reduce_seconds
from mccl.plans import Collective
from mccl.plans.choose import DIRECT_MAX_WORLD, Rule, Table, default_table

TOLERANCE = 0.02
"""A rule is kept for the next size too while it is no more than this share off the best."""

SIZES: tuple[int, ...] = (
    *(1 << k for k in (10, 12, 14)),
    *(size for k in range(16, 28) for size in (1 << k, 3 << (k - 1))),
    1 << 28,
)
"""Bytes at which algorithms are compared: 1 KiB to 256 MiB, closer where winners change. Not
powers of two alone, at which trees cut a payload into pieces more evenly than elsewhere."""

Times = Mapping[str, Sequence[float]]
"""Algorithm -> seconds, one for each size."""


def candidates(world: int, groups: Groups | None = None) -> tuple[str, ...]:
    """The all-reduce algorithms that are a choice for ``world`` ranks; the ring comes first, as
    it is the one without a condition."""
    names = ["ring", "recursive_doubling", "rabenseifner", "double_tree"]
    if world <= DIRECT_MAX_WORLD:
        names.append("direct")
    if groups is not None and 1 < len(groups) < world:
        names += ["two_level", "two_level_doubling"]
    return tuple(names)


def times(
    network: Network,
    world: int,
    *,
    groups: Groups | None = None,
    sizes: Sequence[int] = SIZES,
) -> dict[str, tuple[float, ...]]:
    """Simulated seconds of every candidate at every size."""
    return {
        name: tuple(
            all_reduce_seconds(name, network, size, world=world, groups=groups) for size in sizes
        )
        for name in candidates(world, groups)
    }


def rules(measured: Times, sizes: Sequence[int], tolerance: float = TOLERANCE) -> tuple[Rule, ...]:
    """Rules, smallest sizes first, that choose within ``tolerance`` of the best at every size."""
    best = [min(column) for column in zip(*measured.values(), strict=True)]
    found: list[tuple[str, int]] = []
    at = 0
    while at < len(sizes):
        reach = {name: _reach(series, best, at, tolerance) for name, series in measured.items()}
        name = max(reach, key=lambda n: (reach[n], -measured[n][at]))
        at = reach[name]
        found.append((name, sizes[at - 1]))
    last = found.pop()[0]
    return (*(Rule(name, max_bytes=bound) for name, bound in found), Rule(last))


def _reach(series: Sequence[float], best: Sequence[float], at: int, tolerance: float) -> int:
    """The first index from ``at`` on where ``series`` is too far from the best."""
    while at < len(best) and series[at] <= best[at] * (1 + tolerance):
        at += 1
    return at


def table(network: Network, world: int, *, groups: Groups | None = None) -> Table:
    """The default table with rules for all-reduce that fit ``network`` and ``world``.

    Where two rules meet, the bound between the sizes compared is found by bisection.
    """

    def time(name: str, nbytes: int) -> float:
        return all_reduce_seconds(name, network, nbytes, world=world, groups=groups)

    coarse = fastest(candidates(world, groups), time)
    grouped = any(rule.algorithm == "two_level" for rule in coarse)
    chosen: tuple[Rule, ...] = coarse
    if grouped:
        chosen = tuple(
            Rule(r.algorithm, r.max_bytes, grouped_only=r.algorithm == "two_level") for r in chosen
        )
        if chosen[-1].grouped_only:
            chosen = (*chosen, Rule("ring"))
    return {**default_table(), Collective.ALL_REDUCE: chosen}


def fastest(names: Sequence[str], time: Callable[[str, int], float]) -> tuple[Rule, ...]:
    """Rules that choose among ``names`` by ``time(name, nbytes)`` in seconds."""
    if len(names) == 1:
        return (Rule(names[0]),)
    coarse = rules({name: [time(name, nbytes) for nbytes in SIZES] for name in names}, SIZES)
    following = dict(pairwise(SIZES))
    refined = [refine(a, b, following[a.max_bytes or 0], time) for a, b in pairwise(coarse)]
    return (*refined, coarse[-1])


def refine(rule: Rule, following: Rule, high: int, time: Callable[[str, int], float]) -> Rule:
    """``rule`` with the bound moved, below ``high`` bytes, to where the next one becomes the
    better."""
    assert rule.max_bytes is not None
    low = rule.max_bytes
    for _ in range(3):
        middle = (low + high) // 2
        if time(rule.algorithm, middle) <= time(following.algorithm, middle):
            low = middle
        else:
            high = middle
    return Rule(rule.algorithm, max_bytes=low)


def best_group_size(network: Network, world: int, nbytes: int) -> tuple[int, float]:
    """(members a group, seconds) of the fastest two-level ring of ``nbytes`` in equal groups;
    (``world``, seconds of the flat ring) where none is faster or ``world`` is prime.

    The divisors of ``world`` are ranked by the closed form, the best three are simulated.
    """
    best = (world, all_reduce_seconds("ring", network, nbytes, world=world))
    closed = network.hockney
    sizes = [g for g in range(2, world // 2 + 1) if world % g == 0]
    sizes.sort(key=lambda g: closed.two_level(world, nbytes, g))
    for size in sizes[:3]:
        seconds = all_reduce_seconds(
            "two_level", network, nbytes, world=world, groups=blocks(world, size)
        )
        if seconds < best[1]:
            best = (size, seconds)
    return best
