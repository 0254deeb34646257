"""Seconds of a collective on a network, by simulating the plans of its algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import lcm

from mccl.model.network import Groups, Network, equal
from mccl.model.simulate import Kinds, run
from mccl.plans import Collective, Plan, Request, build

MAX_DIRECT_WORLD = 64
"""Beyond this, connecting every rank to every other is no choice."""


_WHOLE = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)
"""Collectives whose request counts the whole payload, not a rank's piece."""


def all_reduce_seconds(
    algorithm: str,
    network: Network,
    nbytes: int,
    *,
    world: int | None = None,
    groups: Groups | None = None,
    itemsize: int = 4,
    wire_itemsize: int | None = None,
) -> float:
    """Seconds of one all-reduce of ``nbytes`` (the tensor on each rank) on the first ``world``
    hosts (default: all).

    ``itemsize``: bytes of an element in memory; ``wire_itemsize`` on the wire, if narrower.
    ``groups``: for "two_level". ValueError for an algorithm that all-reduce does not have.
    """
    return collective_seconds(
        Collective.ALL_REDUCE,
        algorithm,
        network,
        nbytes,
        world=world,
        groups=groups,
        itemsize=itemsize,
        wire_itemsize=wire_itemsize,
    )


def collective_seconds(
    collective: Collective,
    algorithm: str,
    network: Network,
    nbytes: int,
    *,
    world: int | None = None,
    groups: Groups | None = None,
    itemsize: int = 4,
    wire_itemsize: int | None = None,
) -> float:
    """Seconds of one ``collective`` with a choice of algorithms, as ``all_reduce_seconds``.

    ``nbytes``: the whole payload as ``plans.choose`` counts it: the tensor of an all-reduce,
    broadcast or reduce, all ranks' pieces together otherwise. Rank 0 is the root.
    """
    world = network.hosts if world is None else world
    if world == 1:
        return 0.0
    count = -(-nbytes // itemsize)
    wire = itemsize if wire_itemsize is None else wire_itemsize
    kinds = symmetry(algorithm, network, world, groups)
    if kinds is None:
        ranks: Sequence[int] = range(world)
    else:
        ranks = list(dict.fromkeys(kinds[1]))
        # Alike means equal pieces: round up to what divides evenly.
        count = -(-count // kinds[0]) * kinds[0]
    if collective not in _WHOLE:
        count = -(-count // world)
    plans = _plans(collective, algorithm, world, count, groups, tuple(ranks))
    if kinds is None:
        return run(plans, network, itemsize=wire).seconds
    number = {rank: i for i, rank in enumerate(ranks)}
    kind = [number[rank] for rank in kinds[1]]
    alike = world // len(ranks) if network.switches else 1
    return run(plans, network, itemsize=wire, kinds=Kinds(kind, alike)).seconds


def symmetry(
    algorithm: str, network: Network, world: int, groups: Groups | None
) -> tuple[int, list[int]] | None:
    """(what the element count must divide by, a representative for each rank); None where the
    ranks differ.

    A ring looks the same from every rank of one switch, a two-level ring of equal groups from
    every member of a group, if groups are switches where there are several. ``tests/model``
    compares both with the simulation of all ranks.
    """
    if not network.even:
        return None
    if algorithm == "ring" and not network.switches:
        return world, [0] * world
    if algorithm == "two_level" and groups and equal(groups):
        if network.switches and network.switches != groups:
            return None
        representative = [0] * world
        for group in groups:
            for rank in group:
                representative[rank] = group[0]
        return lcm(world, len(groups[0])), representative
    return None


@lru_cache(maxsize=16)
def _plans(
    collective: Collective,
    algorithm: str,
    world: int,
    count: int,
    groups: Groups | None,
    ranks: tuple[int, ...],
) -> list[Plan]:
    request = Request(sizes=count, groups=groups)
    return [build(collective, algorithm, world, rank, request) for rank in ranks]
