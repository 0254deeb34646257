"""Two-level ring all-reduce: groups of ranks that share a fast network (one switch).

1. Each group reduce-scatters around its own ring: a member owns a chunk of its group's sum.
2. The owners of the same elements, one a group, all-reduce them around a ring of groups.
3. Each group all-gathers around its ring.

A payload crosses between groups ``2 (G-1)/G`` times in all, shared by the members, and
the latency is that of two short rings instead of one long one.

Groups may differ in size. Their chunk boundaries then differ, so the payload is cut at
all boundaries of all groups, and each of these *strips* once more into one unit a group,
the pieces of the ring between the groups. Every step moves one unit, which keeps the
three phases one pipeline: a unit enters a phase as soon as it has left the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from mccl.plans.emit import Emitter, Number, split
from mccl.plans.plan import Collective, Plan, Region


def check_groups(world: int, groups: Sequence[Sequence[int]]) -> None:
    """ValueError unless every rank is in exactly one group and no group is empty."""
    members = sorted(rank for group in groups for rank in group)
    if members != list(range(world)) or any(not group for group in groups):
        raise ValueError(
            f"groups must hold each of the ranks 0 to {world - 1} exactly once and none may be "
            f"empty, got {[list(g) for g in groups]}"
        )


@dataclass(slots=True)
class _State:
    """What has happened to each unit on this rank: the last step that wrote or sent it."""

    b: Emitter
    written: dict[Region, Number] = field(default_factory=dict)
    sent: dict[Region, Number] = field(default_factory=dict)

    def send(self, peer: int, unit: Region) -> None:
        self.sent[unit] = self.b.send(peer, unit, stream=(self.written.get(unit),))

    def add(self, peer: int, unit: Region, final: bool) -> None:
        before = (self.written.get(unit),)
        self.written[unit] = self.b.recv_reduce(peer, unit, unit, stream=before, final=final)

    def replace(self, peer: int, unit: Region) -> None:
        before = (self.sent.get(unit),)
        self.written[unit] = self.b.recv(peer, unit, stream=before)


def _strips(count: int, groups: Sequence[Sequence[int]]) -> list[tuple[int, list[Region]]]:
    """(first element, units) of every strip, in ascending order."""
    cuts = {0, count}
    for group in groups:
        cuts.update(accumulate(split(count, len(group))))
    strips = []
    for start, end in pairwise(sorted(cuts)):
        sizes = split(end - start, len(groups))
        starts = accumulate(sizes, initial=start)
        units = [Region(0, at, size) for at, size in zip(starts, sizes, strict=False)]
        strips.append((start, units))
    return strips


def _chunks(count: int, members: int, strips: list[tuple[int, list[Region]]]) -> list[list[int]]:
    """Numbers of the strips in each of a group's ``members`` chunks."""
    bounds = list(accumulate(split(count, members), initial=0))
    return [
        [i for i, (start, _) in enumerate(strips) if low <= start < high]
        for low, high in pairwise(bounds)
    ]


def all_reduce(world: int, rank: int, count: int, groups: Sequence[Sequence[int]] | None) -> Plan:
    """Two-level ring in place. External 0: ``count`` elements, input and output.

    ``groups``: the same on every rank; the order of groups and of members is that of the
    rings. ValueError when they are missing or do not hold each rank once.
    """
    if groups is None:
        raise ValueError("two_level needs groups: the ranks that share a switch, for each switch")
    check_groups(world, groups)
    b = Emitter(Collective.ALL_REDUCE, "two_level", world, rank, (count,))
    if world == 1:
        whole = Region(0, 0, count)
        b.copy(whole, whole, final=True)
        return b.build()
    strips = _strips(count, groups)
    mine = next(g for g, group in enumerate(groups) if rank in group)
    group = groups[mine]
    size, place = len(group), group.index(rank)
    right, left = group[(place + 1) % size], group[(place - 1) % size]
    chunks = _chunks(count, size, strips)
    state = _State(b)

    def units(chunk: int) -> Iterator[Region]:
        for strip in chunks[chunk % size]:
            yield from strips[strip][1]

    for s in range(size - 1):
        for unit in units(place - s):
            state.send(right, unit)
        for unit in units(place - s - 1):
            state.add(left, unit, len(groups) == 1 and s == size - 2)
    _across(state, count, groups, mine, strips, chunks[(place + 1) % size])
    for s in range(size - 1):
        for unit in units(place + 1 - s):
            state.send(right, unit)
        for unit in units(place - s):
            state.replace(left, unit)
    return b.build()


def _owners(
    count: int, group: Sequence[int], strips: list[tuple[int, list[Region]]]
) -> dict[int, int]:
    """Strip -> the member of ``group`` that owns it after the reduce-scatter."""
    size = len(group)
    return {
        strip: group[(chunk - 1) % size]
        for chunk, inside in enumerate(_chunks(count, size, strips))
        for strip in inside
    }


def _across(
    state: _State,
    count: int,
    groups: Sequence[Sequence[int]],
    mine: int,
    strips: list[tuple[int, list[Region]]],
    owned: list[int],
) -> None:
    """All-reduce the ``owned`` strips around the ring of groups."""
    ring = len(groups)
    to = _owners(count, groups[(mine + 1) % ring], strips)
    by = _owners(count, groups[(mine - 1) % ring], strips)
    for s in range(ring - 1):
        for strip in owned:
            units = strips[strip][1]
            state.send(to[strip], units[(mine - s) % ring])
            state.add(by[strip], units[(mine - s - 1) % ring], s == ring - 2)
    for s in range(ring - 1):
        for strip in owned:
            units = strips[strip][1]
            state.send(to[strip], units[(mine + 1 - s) % ring])
            state.replace(by[strip], units[(mine - s) % ring])
