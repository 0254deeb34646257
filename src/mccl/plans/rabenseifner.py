"""Rabenseifner's all-reduce: recursive halving, then recursive doubling.

``2 ⌈log2 N⌉`` rounds and the ring's bytes: less latency than a ring, but partners are
far apart, so that flows share links of a tree of switches. Worlds that are no power of
two fold as in ``recursive_doubling`` (Thakur, Rabenseifner and Gropp, 2005).

In a round of the first half two ranks split what both still hold; each sends the half it
gives up and adds what it receives to the half it keeps, the lower rank's operand on the
left. After the last round every core rank owns one piece, finished there; the second
half retraces the rounds.
"""

from __future__ import annotations

from mccl.plans.emit import Emitter, Number, pieces, split
from mccl.plans.plan import Collective, Plan, Region


def all_reduce(world: int, rank: int, count: int) -> Plan:
    """Recursive halving and doubling in place. External 0: ``count`` elements, input and
    output."""
    b = Emitter(Collective.ALL_REDUCE, "rabenseifner", world, rank, (count,))
    whole = Region(0, 0, count)
    if world == 1:
        b.copy(whole, whole, final=True)
        return b.build()
    core = 1 << (world.bit_length() - 1)
    extra = world - core
    folded = rank < 2 * extra
    if folded and rank % 2 == 0:
        sent = b.send(rank + 1, whole)
        b.recv(rank + 1, whole, stream=(sent,))
        return b.build()
    got: Number = None
    if folded:
        got = b.recv_reduce(rank - 1, whole, whole, incoming_first=True)
    place = rank // 2 if folded else rank - extra
    written = _exchange(b, pieces(split(count, core)), place, extra, got)
    if folded:
        b.send(rank - 1, whole, full=written)
    return b.build()


def _exchange(
    b: Emitter, chunks: tuple[Region, ...], place: int, extra: int, got: Number
) -> list[Number]:
    """Both halves among the core ranks, one a chunk; returns the steps that wrote the result."""

    def span(first: int, size: int) -> Region:
        inside = chunks[first : first + size]
        return Region(0, inside[0].offset, sum(c.count for c in inside))

    first, size = 0, len(chunks)
    rounds: list[tuple[int, Region, Region, Number]] = []
    while size > 1:
        size //= 2
        upper = bool(place & size)
        keep, give = (first + size, first) if upper else (first, first + size)
        other = place ^ size
        peer = 2 * other + 1 if other < extra else other + extra
        kept, given = span(keep, size), span(give, size)
        sent = b.send(peer, given, full=(got,))
        got = b.recv_reduce(peer, kept, kept, full=(got,), final=size == 1, incoming_first=upper)
        rounds.append((peer, kept, given, sent))
        first = keep
    written = [got]
    for peer, kept, given, sent in reversed(rounds):
        b.send(peer, kept, full=written)
        written.append(b.recv(peer, given, stream=(sent,)))
    return written
