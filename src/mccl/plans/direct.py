"""Direct exchange: every rank sends each owner its piece in one hop.

A direct reduce-scatter moves the ring's bytes, but the owner of a piece adds all
contributions itself, in rank order, in the accumulation dtype (float32 for float16 and
bfloat16): one rounding where a ring has N-1. It is also the shortest in latency. Its
price is N-1 connections a rank.

Memory stays bounded: the streams of different peers are consumed in rank order into one
accumulator, each only as far as the one before it has been added; the rest waits in the
peers' socket buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

from mccl.plans.binomial import check_root
from mccl.plans.emit import Emitter, Number, Sizes, extents, per_rank, pieces, split
from mccl.plans.plan import Collective, Plan, Region


def _sum_in_rank_order(b: Emitter, own: Region, output: Region) -> Number:
    """Adds up the piece ``own`` of every rank into ``output``; returns the last step."""
    count = own.count
    total = Region(b.scratch(count, accumulate=True), 0, count)
    if b.rank == 0:
        done = b.copy(total, own)
    else:
        first = Region(b.scratch(count), 0, count)
        done = b.copy(total, first, stream=(b.recv(0, first),))
    for peer in range(1, b.world):
        if peer == b.rank:
            done = b.reduce(total, own, stream=(done,))
        else:
            done = b.recv_reduce(peer, total, total, stream=(done,))
    return b.copy(output, total, stream=(done,), final=True)


def _others(b: Emitter) -> Sequence[int]:
    """The other ranks, nearest successor first, so that not all start with rank 0."""
    return [(b.rank + k) % b.world for k in range(1, b.world)]


def all_reduce(world: int, rank: int, count: int) -> Plan:
    """Direct reduce-scatter, then direct all-gather, in place.

    External 0: ``count`` elements, input and output. Rank r owns piece r.
    """
    b = Emitter(Collective.ALL_REDUCE, "direct", world, rank, (count,))
    if world == 1:
        whole = Region(0, 0, count)
        b.copy(whole, whole, final=True)
        return b.build()
    chunks = pieces(split(count, world))
    sent = {peer: b.send(peer, chunks[peer]) for peer in _others(b)}
    done: Number = None
    if chunks[rank].count:
        done = _sum_in_rank_order(b, chunks[rank], chunks[rank])
    for peer in _others(b):
        b.send(peer, chunks[rank], stream=(done,))
    for peer in _others(b):
        b.recv(peer, chunks[peer], stream=(sent[peer],))
    return b.build()


def reduce_scatter(world: int, rank: int, sizes: Sizes, *, list_input: bool = False) -> Plan:
    """Direct reduce-scatter; the input is not modified. Buffers as in ``ring.reduce_scatter``."""
    each = per_rank(sizes, world)
    external = (*extents(each, separate=list_input), each[rank])
    b = Emitter(Collective.REDUCE_SCATTER, "direct", world, rank, external)
    chunks = pieces(each, separate=list_input)
    output = Region(len(external) - 1, 0, each[rank])
    if world == 1:
        b.copy(output, chunks[0], final=True)
        return b.build()
    for peer in _others(b):
        b.send(peer, chunks[peer])
    if output.count:
        _sum_in_rank_order(b, chunks[rank], output)
    return b.build()


def all_gather(world: int, rank: int, sizes: Sizes, *, list_output: bool = False) -> Plan:
    """Everyone sends its piece to everyone. Buffers as in ``ring.all_gather``."""
    each = per_rank(sizes, world)
    external = (each[rank], *extents(each, separate=list_output))
    b = Emitter(Collective.ALL_GATHER, "direct", world, rank, external)
    chunks = pieces(each, 1, separate=list_output)
    own = Region(0, 0, each[rank])
    b.copy(chunks[rank], own)
    for peer in _others(b):
        b.send(peer, own)
    for peer in _others(b):
        b.recv(peer, chunks[peer])
    return b.build()


def gather(
    world: int, rank: int, sizes: Sizes, root: int = 0, *, list_output: bool = False
) -> Plan:
    """Everyone sends straight to the root. Buffers as in ``binomial.gather``.

    The root's link carries the same bytes as in a tree, and nobody else's carries any twice.
    """
    check_root(world, root)
    each = per_rank(sizes, world)
    outputs = extents(each, separate=list_output) if rank == root else ()
    b = Emitter(Collective.GATHER, "direct", world, rank, (each[rank], *outputs), root)
    own = Region(0, 0, each[rank])
    if rank != root:
        b.send(root, own)
        return b.build()
    slots = pieces(each, 1, separate=list_output)
    b.copy(slots[rank], own)
    for peer in _others(b):
        b.recv(peer, slots[peer])
    return b.build()


def scatter(
    world: int, rank: int, sizes: Sizes, root: int = 0, *, list_input: bool = False
) -> Plan:
    """The root sends each piece straight to its rank. Buffers as in ``binomial.scatter``."""
    check_root(world, root)
    each = per_rank(sizes, world)
    inputs = extents(each, separate=list_input) if rank == root else ()
    b = Emitter(Collective.SCATTER, "direct", world, rank, (*inputs, each[rank]), root)
    output = Region(len(inputs), 0, each[rank])
    if rank != root:
        b.recv(root, output)
        return b.build()
    parts = pieces(each, separate=list_input)
    b.copy(output, parts[rank])
    for peer in _others(b):
        b.send(peer, parts[peer])
    return b.build()
