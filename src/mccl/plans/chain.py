"""Pipelined chain: broadcast and reduce of large payloads.

root → root+1 → … (or back towards the root). Every link carries the payload once and
all links work at the same time, because a step forwards whatever part has arrived: the
time is that of one transfer plus N-2 hops of latency, where a binomial tree makes the
root carry the payload ``⌈log2 N⌉`` times over.
"""

from __future__ import annotations

from mccl.plans.binomial import check_root
from mccl.plans.emit import Emitter, Number, pieces, split
from mccl.plans.plan import Collective, Plan, Region

SEGMENTS = 64
"""A relayed sum passes through the chain in at most this many segments."""

MIN_SEGMENT = 65536
"""Elements of a segment, at least: below this, steps cost more than scratch saves."""

SLOTS = 3
"""Segments of scratch a relaying rank holds: one leaves, one arrives, one to spare."""


def broadcast(world: int, rank: int, count: int, root: int = 0) -> Plan:
    """Chain broadcast in place. External 0: ``count`` elements, the root's input and
    everyone else's output."""
    check_root(world, root)
    b = Emitter(Collective.BROADCAST, "chain", world, rank, (count,), root)
    place = (rank - root) % world
    whole = Region(0, 0, count)
    got: Number = None
    if place:
        got = b.recv((rank - 1) % world, whole)
    if place < world - 1:
        b.send((rank + 1) % world, whole, stream=(got,))
    return b.build()


def reduce(
    world: int, rank: int, count: int, root: int = 0, *, min_segment: int = MIN_SEGMENT
) -> Plan:
    """Chain reduce.

    External 0: input, ``count`` elements, not modified. The root has external 1: output,
    ``count`` elements; it may be the very same memory as its input. Inner ranks hold
    ``SLOTS`` segments of scratch. ``min_segment`` must be the same on all ranks.
    """
    check_root(world, root)
    place = (rank - root) % world
    external = (count,) if place else (count, count)
    b = Emitter(Collective.REDUCE, "chain", world, rank, external, root)
    segments = max(1, min(SEGMENTS, count // min_segment))
    parts = pieces(split(count, segments))
    toward, away = (rank - 1) % world, (rank + 1) % world
    if world == 1:
        b.copy(Region(1, 0, count), Region(0, 0, count), final=True)
    elif place == world - 1:
        for part in parts:
            b.send(toward, part)
    elif place == 0:
        for part in parts:
            b.recv_reduce(away, Region(1, part.offset, part.count), part, final=True)
    else:
        slots = [b.scratch(parts[0].count) for _ in range(min(SLOTS, segments))]
        sent: list[Number] = []
        for i, part in enumerate(parts):
            held = Region(slots[i % len(slots)], 0, part.count)
            free = sent[i - len(slots)] if i >= len(slots) else None
            got = b.recv_reduce(away, held, part, full=(free,))
            sent.append(b.send(toward, held, stream=(got,)))
    return b.build()
