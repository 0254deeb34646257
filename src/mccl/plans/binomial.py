"""Binomial trees: broadcast, reduce, gather and scatter in ``⌈log2 N⌉`` rounds.

Ranks are renumbered from the root: place v = (rank - root) mod N. The parent of v is v
without its lowest set bit; v's subtree is the places ``v .. v + lowest bit - 1``.
For small payloads; ``chain`` and ``direct`` carry large ones.
"""

from __future__ import annotations

from mccl.plans.emit import Emitter, Number, Sizes, extents, per_rank, pieces
from mccl.plans.plan import Collective, Plan, Region


def check_root(world: int, root: int) -> None:
    """ValueError unless ``root`` is a rank."""
    if not 0 <= root < world:
        raise ValueError(f"root must be in [0, {world}), got {root}")


def _children(place: int, world: int) -> list[tuple[int, int]]:
    """(first place, end) of each child's subtree, smallest subtree first."""
    reach = (place & -place) if place else world
    subtrees = []
    bit = 1
    while bit < reach and place + bit < world:
        subtrees.append((place + bit, min(place + 2 * bit, world)))
        bit *= 2
    return subtrees


def broadcast(world: int, rank: int, count: int, root: int = 0) -> Plan:
    """Binomial broadcast in place. External 0: ``count`` elements, the root's input and
    everyone else's output."""
    check_root(world, root)
    b = Emitter(Collective.BROADCAST, "binomial", world, rank, (count,), root)
    place = (rank - root) % world
    whole = Region(0, 0, count)
    got: Number = None
    if place:
        got = b.recv((root + (place & (place - 1))) % world, whole)
    for child, _ in reversed(_children(place, world)):
        b.send((root + child) % world, whole, stream=(got,))
    return b.build()


def reduce(world: int, rank: int, count: int, root: int = 0) -> Plan:
    """Binomial reduce.

    External 0: input, ``count`` elements, not modified. The root has external 1: output,
    ``count`` elements; it may be the very same memory as its input. Inner ranks sum in
    a scratch buffer.
    """
    check_root(world, root)
    place = (rank - root) % world
    external = (count,) if place else (count, count)
    b = Emitter(Collective.REDUCE, "binomial", world, rank, external, root)
    total = Region(0, 0, count)
    subtrees = _children(place, world)
    if not place and not subtrees:
        b.copy(Region(1, 0, count), total, final=True)
        return b.build()
    got: Number = None
    if subtrees:
        held = Region(1 if not place else b.scratch(count), 0, count)
        for child, end in subtrees:
            last = not place and (child, end) == subtrees[-1]
            peer = (root + child) % world
            got = b.recv_reduce(peer, held, total, stream=(got,), final=last)
            total = held
    if place:
        b.send((root + (place & (place - 1))) % world, total, stream=(got,))
    return b.build()


def gather(
    world: int, rank: int, sizes: Sizes, root: int = 0, *, list_output: bool = False
) -> Plan:
    """Binomial gather.

    ``sizes``: elements each rank contributes. External 0: input, ``sizes[rank]``
    elements. The root has external 1: output, the pieces of ranks 0, 1, … end to end;
    with ``list_output`` externals ``1 .. world``. Its input may be its own piece of the
    output. Pieces travel one by one, so an inner rank relays them as they come.
    """
    check_root(world, root)
    each = per_rank(sizes, world)
    place = (rank - root) % world
    outputs = () if place else extents(each, separate=list_output)
    b = Emitter(Collective.GATHER, "binomial", world, rank, (each[rank], *outputs), root)
    own = Region(0, 0, each[rank])
    subtrees = _children(place, world)
    if place:
        parent = (root + (place & (place - 1))) % world
        b.send(parent, own)
        where = _relay(b, each, place, root)
    else:
        where = dict(enumerate(pieces(each, 1, separate=list_output)))
        b.copy(where[rank], own)
    for child, end in subtrees:
        for v in range(child, end):
            piece = where[(root + v) % world]
            got = b.recv((root + child) % world, piece)
            if place:
                b.send(parent, piece, stream=(got,))
    return b.build()


def scatter(
    world: int, rank: int, sizes: Sizes, root: int = 0, *, list_input: bool = False
) -> Plan:
    """Binomial scatter.

    ``sizes``: elements each rank receives. The root's first external is its input, the
    pieces for ranks 0, 1, … end to end; with ``list_input`` externals ``0 .. world-1``.
    Last external (the only one elsewhere): output, ``sizes[rank]`` elements; the root's
    may be its own piece of the input.
    """
    check_root(world, root)
    each = per_rank(sizes, world)
    place = (rank - root) % world
    inputs = () if place else extents(each, separate=list_input)
    b = Emitter(Collective.SCATTER, "binomial", world, rank, (*inputs, each[rank]), root)
    own = Region(len(inputs), 0, each[rank])
    got: dict[int, Number] = {}
    if place:
        parent = (root + (place & (place - 1))) % world
        b.recv(parent, own)
        where = _relay(b, each, place, root)
        for peer, piece in where.items():
            got[peer] = b.recv(parent, piece)
    else:
        where = dict(enumerate(pieces(each, separate=list_input)))
        b.copy(own, where[rank])
    for child, end in _children(place, world):
        for v in range(child, end):
            peer = (root + v) % world
            b.send((root + child) % world, where[peer], stream=(got.get(peer),))
    return b.build()


def _relay(b: Emitter, each: tuple[int, ...], place: int, root: int) -> dict[int, Region]:
    """Scratch for the pieces that pass through ``place``: rank -> where, in place order."""
    subtrees = _children(place, b.world)
    if not subtrees:
        return {}
    inside = [(root + v) % b.world for v in range(place + 1, subtrees[-1][1])]
    sizes = [each[peer] for peer in inside]
    return dict(zip(inside, pieces(sizes, b.scratch(sum(sizes))), strict=True))
