"""Two-level recursive doubling all-reduce, for small payloads: every round moves all of it.

1. Each group sums by recursive doubling: all its *cores* hold the same bits. A group that is no
   power of two folds as in ``recursive_doubling``: the members beyond wait for the result.
2. The groups sum by recursive doubling, all cores of a group alike, each with a counterpart
   in the other group. Groups beyond a power of two fold in the same way.

``⌈log2⌉`` of the largest group and of the number of groups make the rounds (each two more, at
most, where it folds), and only those of phase 2 leave a group, however ranks are numbered. In the
flat algorithm up to every round does: where ranks are dealt out over switches, or where groups are
no powers of two.

Groups may differ in size: core i of a group hears from core ``i mod n`` of the ``n`` cores of the
other, which sends to as many as that takes. Lower members and groups are the left operand, so every
rank evaluates the same expression.
"""

from __future__ import annotations

from collections.abc import Sequence

from mccl.plans.emit import Emitter, Number
from mccl.plans.plan import Collective, Plan, Region
from mccl.plans.two_level import check_groups


def cores(members: Sequence[int]) -> list[int]:
    """Of ``members``, those that take part in every round: a power of two, in order."""
    extra = len(members) - _power(len(members))
    return [*members[1 : 2 * extra : 2], *members[2 * extra :]]


def all_reduce(world: int, rank: int, count: int, groups: Sequence[Sequence[int]] | None) -> Plan:
    """Two-level recursive doubling in place. External 0: ``count`` elements, input and output.

    ``groups``: the same on every rank; the order of groups and of members is that of the operands.
    ValueError when they are missing or do not hold each rank once.
    """
    if groups is None:
        raise ValueError(
            "two_level_doubling needs groups: the ranks that share a switch, for each switch"
        )
    check_groups(world, groups)
    b = Emitter(Collective.ALL_REDUCE, "two_level_doubling", world, rank, (count,))
    whole = Region(0, 0, count)
    if world == 1:
        b.copy(whole, whole, final=True)
        return b.build()
    mine = next(g for g, group in enumerate(groups) if rank in group)
    group = groups[mine]
    at, folds = group.index(rank), 2 * (len(group) - _power(len(group)))
    if at < folds and at % 2 == 0:
        sent = b.send(group[at + 1], whole)
        b.recv(group[at + 1], whole, stream=(sent,))
        return b.build()
    got: Number = None
    if at < folds:
        got = b.recv_reduce(group[at - 1], whole, whole, incoming_first=True)
    got = _inside(b, whole, cores(group), rank, got, last=len(groups) == 1)
    got = _across(b, whole, [cores(members) for members in groups], mine, got)
    if at < folds:
        b.send(group[at - 1], whole, stream=(got,))
    return b.build()


def _power(number: int) -> int:
    """The largest power of two up to ``number``."""
    return 1 << (number.bit_length() - 1)


def _inside(
    b: Emitter, whole: Region, members: list[int], rank: int, got: Number, *, last: bool
) -> Number:
    """Sum over the cores of one group; ``last``: nothing is added afterwards."""
    place = members.index(rank)
    bit = 1
    while bit < len(members):
        other = place ^ bit
        sent = b.send(members[other], whole, stream=(got,))
        got = b.recv_reduce(
            members[other],
            whole,
            whole,
            stream=(sent,),
            final=last and 2 * bit == len(members),
            incoming_first=other < place,
        )
        bit *= 2
    return got


def _across(b: Emitter, whole: Region, groups: list[list[int]], mine: int, got: Number) -> Number:
    """Sum over the groups, given by their cores."""
    place = groups[mine].index(b.rank)
    core = _power(len(groups))
    folds = 2 * (len(groups) - core)

    def send(to: int) -> list[Number]:
        receivers = groups[to][place :: len(groups[mine])]
        return [b.send(peer, whole, stream=(got,)) for peer in receivers] or [got]

    def source(other: int) -> int:
        return groups[other][place % len(groups[other])]

    if mine < folds and mine % 2 == 0:
        return b.recv(source(mine + 1), whole, stream=send(mine + 1))
    if mine < folds:
        got = b.recv_reduce(
            source(mine - 1), whole, whole, stream=(got,), incoming_first=True, final=False
        )
    turn = mine // 2 if mine < folds else mine - folds // 2
    bit = 1
    while bit < core:
        opposite = turn ^ bit
        other = 2 * opposite + 1 if 2 * opposite < folds else opposite + folds // 2
        sent = send(other)
        got = b.recv_reduce(
            source(other),
            whole,
            whole,
            stream=sent,
            final=2 * bit == core,
            incoming_first=opposite < turn,
        )
        bit *= 2
    if mine < folds:
        send(mine - 1)
    return got
