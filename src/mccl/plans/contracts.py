"""What each collective owes: the statement that ``check`` proves plans against.

Written from the meaning of the collectives and the buffer conventions alone, not from
the algorithms, so that a proof compares two independent things.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mccl.plans.emit import extents, per_rank, pieces
from mccl.plans.plan import Collective, Region
from mccl.plans.request import Request


@dataclass(frozen=True, slots=True)
class Owed:
    """``region`` must end up holding input elements ``[offset, offset + count)`` of buffer
    ``buffer``: rank ``source``'s, or, where ``source`` is None, every rank's, reduced and
    marked final."""

    region: Region
    source: int | None
    buffer: int
    offset: int


@dataclass(frozen=True, slots=True)
class Contract:
    """One rank's side: buffer sizes, which buffers hold input before the call, which may
    be written, and what is owed after it."""

    external: tuple[int, ...]
    inputs: frozenset[int]
    writable: frozenset[int]
    owed: tuple[Owed, ...]


def contract(
    collective: Collective, world: int, rank: int, requests: Sequence[Request]
) -> Contract:
    """The contract of ``rank``; ``requests[r]`` is what rank r asked for."""
    request = requests[rank]
    match collective:
        case Collective.BARRIER:
            return Contract((), frozenset(), frozenset(), ())
        case Collective.ALL_REDUCE | Collective.BROADCAST | Collective.REDUCE:
            return _whole(collective, rank, request)
        case Collective.REDUCE_SCATTER:
            return _reduce_scatter(world, rank, request)
        case Collective.ALL_GATHER | Collective.GATHER:
            return _gather(collective, world, rank, request)
        case Collective.SCATTER:
            return _scatter(world, rank, requests)
        case Collective.ALL_TO_ALL:
            return _all_to_all(world, rank, requests)


def _whole(collective: Collective, rank: int, request: Request) -> Contract:
    count, root = request.count, request.root
    buffer = Region(0, 0, count)
    first, none = frozenset({0}), frozenset[int]()
    if collective is Collective.ALL_REDUCE:
        return Contract((count,), first, first, (Owed(buffer, None, 0, 0),))
    if collective is Collective.BROADCAST:
        if rank == root:
            return Contract((count,), first, none, (Owed(buffer, root, 0, 0),))
        return Contract((count,), none, first, (Owed(buffer, root, 0, 0),))
    if rank == root:
        owed = Owed(Region(1, 0, count), None, 0, 0)
        return Contract((count, count), first, frozenset({1}), (owed,))
    return Contract((count,), first, none, ())


def _reduce_scatter(world: int, rank: int, request: Request) -> Contract:
    sizes = per_rank(request.sizes, world)
    inputs = extents(sizes, separate=request.list_input)
    own = pieces(sizes, separate=request.list_input)[rank]
    last = len(inputs)
    owed = Owed(Region(last, 0, sizes[rank]), None, own.buffer, own.offset)
    return Contract((*inputs, sizes[rank]), frozenset(range(last)), frozenset({last}), (owed,))


def _gather(collective: Collective, world: int, rank: int, request: Request) -> Contract:
    sizes = per_rank(request.sizes, world)
    first = frozenset({0})
    if collective is Collective.GATHER and rank != request.root:
        return Contract((sizes[rank],), first, frozenset(), ())
    outputs = extents(sizes, separate=request.list_output)
    slots = pieces(sizes, 1, separate=request.list_output)
    owed = tuple(Owed(slot, source, 0, 0) for source, slot in enumerate(slots))
    return Contract((sizes[rank], *outputs), first, frozenset(range(1, len(outputs) + 1)), owed)


def _scatter(world: int, rank: int, requests: Sequence[Request]) -> Contract:
    request = requests[rank]
    root = request.root
    sizes = per_rank(request.sizes, world)
    own = pieces(sizes, separate=requests[root].list_input)[rank]
    inputs = extents(sizes, separate=request.list_input) if rank == root else ()
    last = len(inputs)
    owed = Owed(Region(last, 0, sizes[rank]), root, own.buffer, own.offset)
    return Contract((*inputs, sizes[rank]), frozenset(range(last)), frozenset({last}), (owed,))


def _all_to_all(world: int, rank: int, requests: Sequence[Request]) -> Contract:
    request = requests[rank]
    to = per_rank(request.sizes, world)
    by = per_rank(request.sizes if request.recv_sizes is None else request.recv_sizes, world)
    inputs = extents(to, separate=request.list_input)
    outputs = extents(by, separate=request.list_output)
    slots = pieces(by, len(inputs), separate=request.list_output)
    owed = []
    for source, slot in enumerate(slots):
        theirs = requests[source]
        if isinstance(theirs.sizes, int):
            offset = 0 if theirs.list_input else theirs.sizes * rank
        else:
            offset = 0 if theirs.list_input else sum(theirs.sizes[:rank])
        owed.append(Owed(slot, source, rank if theirs.list_input else 0, offset))
    last = len(inputs)
    return Contract(
        (*inputs, *outputs),
        frozenset(range(last)),
        frozenset(range(last, last + len(outputs))),
        tuple(owed),
    )
