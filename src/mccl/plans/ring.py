"""Pipelined ring: bandwidth-optimal all-reduce, reduce-scatter and all-gather.

Rank r sends to r+1 and receives from r-1. A step's send waits element by element for
the receive before it, so the ring is a pipeline without chunks of its own: the engine
forwards whatever part has been reduced. Each rank moves ``2 (N-1)/N`` of the payload in
an all-reduce and ``(N-1)/N`` in the other two (Patarasuk and Yuan, J. Parallel Distrib.
Comput. 69, 2009).

Every reduced piece is finished at one rank, its owner, and copied from there: the same
bits on every rank.
"""

from __future__ import annotations

from mccl.plans.emit import Emitter, Number, Sizes, extents, per_rank, pieces, split
from mccl.plans.plan import Collective, Plan, Region


def all_reduce(world: int, rank: int, count: int) -> Plan:
    """Ring all-reduce in place.

    External 0: ``count`` elements, input and output. ``count`` need not divide by
    ``world``. The owner of piece c is rank c-1, which finishes it before it is passed on.
    """
    b = Emitter(Collective.ALL_REDUCE, "ring", world, rank, (count,))
    if world == 1:
        whole = Region(0, 0, count)
        b.copy(whole, whole, final=True)
        return b.build()
    chunks = pieces(split(count, world))
    right, left = (rank + 1) % world, (rank - 1) % world
    got: Number = None
    sent: list[Number] = [None] * world
    for s in range(world - 1):
        out, into = (rank - s) % world, (rank - s - 1) % world
        sent[out] = b.send(right, chunks[out], stream=(got,))
        got = b.recv_reduce(left, chunks[into], chunks[into], final=s == world - 2)
    for s in range(world - 1):
        out, into = (rank + 1 - s) % world, (rank - s) % world
        b.send(right, chunks[out], stream=(got,))
        got = b.recv(left, chunks[into], stream=(sent[into],))
    return b.build()


def reduce_scatter(world: int, rank: int, sizes: Sizes, *, list_input: bool = False) -> Plan:
    """Ring reduce-scatter; the input is not modified.

    ``sizes``: elements of each rank's result. External 0: input, the ``world`` pieces end
    to end; with ``list_input`` externals ``0 .. world-1``: one piece each. Last external:
    output, ``sizes[rank]`` elements; it may be the caller's own piece of the input, as
    that piece is read only by the step that writes the output.

    Partial sums pass through two scratch slots (three when sizes differ), each written
    again only as its contents have left.
    """
    each = per_rank(sizes, world)
    external = (*extents(each, separate=list_input), each[rank])
    b = Emitter(Collective.REDUCE_SCATTER, "ring", world, rank, external)
    chunks = pieces(each, separate=list_input)
    output = Region(len(external) - 1, 0, each[rank])
    if world == 1:
        b.copy(output, chunks[0], final=True)
        return b.build()
    right, left = (rank + 1) % world, (rank - 1) % world
    even = len(set(each)) == 1
    # Element-wise waits need equal counts; a third slot hides the coarser wait otherwise.
    lanes = min(2 if even else 3, world - 2)
    slots = [b.scratch(max(each)) for _ in range(lanes)]
    reader: list[Number] = [None] * lanes
    held = chunks[(rank - 1) % world]
    got: Number = None
    lane = -1
    for s in range(world - 1):
        number = b.send(right, held, stream=(got,))
        if lane >= 0 and number is not None:
            reader[lane] = number
        into = (rank - 2 - s) % world
        if into == rank:
            b.recv_reduce(left, output, chunks[into], final=True)
            break
        lane = s % lanes
        held = Region(slots[lane], 0, each[into])
        free = (reader[lane],)
        got = (
            b.recv_reduce(left, held, chunks[into], stream=free)
            if even
            else b.recv_reduce(left, held, chunks[into], full=free)
        )
    return b.build()


def all_gather(world: int, rank: int, sizes: Sizes, *, list_output: bool = False) -> Plan:
    """Ring all-gather.

    ``sizes``: elements each rank contributes. External 0: input, ``sizes[rank]``
    elements. External 1: output, the ``world`` pieces end to end; with ``list_output``
    externals ``1 .. world``: one piece each. The input may be the caller's own piece of
    the output.
    """
    each = per_rank(sizes, world)
    external = (each[rank], *extents(each, separate=list_output))
    b = Emitter(Collective.ALL_GATHER, "ring", world, rank, external)
    chunks = pieces(each, 1, separate=list_output)
    right, left = (rank + 1) % world, (rank - 1) % world
    held = Region(0, 0, each[rank])
    b.copy(chunks[rank], held)
    got: Number = None
    for s in range(world - 1):
        b.send(right, held, stream=(got,))
        into = (rank - s - 1) % world
        held = chunks[into]
        got = b.recv(left, held)
    return b.build()
