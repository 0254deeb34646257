"""Double binary tree all-reduce: logarithmic latency at (almost) full bandwidth.

Each half of the payload is reduced up a binary tree and broadcast down it. The two trees
are laid so that a rank which is an inner node of one is a leaf of the other (but for
rank 0 of an odd world); so every rank sends and receives about the whole payload twice
(Sanders, Speck and Träff, Parallel Comput. 35, 2009). Steps stream, so both trees are
pipelines from leaf to root to leaf.

Both trees may use one connection. All ranks put what goes up the first tree before what
goes up the second, before what comes down the first, before what comes down the second:
each of the four waits only for those before it, hence no cycle.
"""

from __future__ import annotations

from mccl.plans.emit import Emitter, Number, pieces, split
from mccl.plans.plan import Collective, Plan, Region


def _parent(place: int, world: int) -> int:
    """Parent of ``place`` in an in-order binary tree whose root is 0 and whose leaves are
    the odd places; -1 for the root."""
    if place == 0:
        return -1
    bit = place & -place
    up = (place ^ bit) | (bit << 1)
    return up if up < world else place ^ bit


def tree(world: int, rank: int, second: bool) -> tuple[int, list[int]]:
    """(parent or -1, children in ascending place) of ``rank`` in one of the two trees.

    The second is the first mirrored (even world) or shifted by one rank (odd world).
    """

    def there(r: int) -> int:
        if not second:
            return r
        return world - 1 - r if world % 2 == 0 else (r - 1) % world

    def back(p: int) -> int:
        if not second:
            return p
        return world - 1 - p if world % 2 == 0 else (p + 1) % world

    place = there(rank)
    parent = _parent(place, world)
    # A child differs from its parent by a power of two.
    steps = [1 << k for k in range(world.bit_length())]
    near = {place - s for s in steps} | {place + s for s in steps}
    children = sorted(p for p in near if 0 < p < world and _parent(p, world) == place)
    return (-1 if parent < 0 else back(parent)), [back(p) for p in children]


def all_reduce(world: int, rank: int, count: int) -> Plan:
    """Double binary tree in place. External 0: ``count`` elements, input and output."""
    b = Emitter(Collective.ALL_REDUCE, "double_tree", world, rank, (count,))
    if world == 1:
        whole = Region(0, 0, count)
        b.copy(whole, whole, final=True)
        return b.build()
    halves = pieces(split(count, 2))
    trees = [tree(world, rank, second) for second in (False, True)]
    risen = [_up(b, half, *nodes) for half, nodes in zip(halves, trees, strict=True)]
    for half, nodes, done in zip(halves, trees, risen, strict=True):
        _down(b, half, *nodes, done)
    return b.build()


def _up(b: Emitter, half: Region, parent: int, children: list[int]) -> Number:
    """Reduce towards the root; returns the step after which ``half`` may be overwritten."""
    got: Number = None
    for child in children:
        last = parent < 0 and child == children[-1]
        got = b.recv_reduce(child, half, half, stream=(got,), final=last)
    return got if parent < 0 else b.send(parent, half, stream=(got,))


def _down(b: Emitter, half: Region, parent: int, children: list[int], done: Number) -> None:
    """Broadcast the finished ``half`` from the root."""
    if parent >= 0:
        done = b.recv(parent, half, stream=(done,))
    for child in children:
        b.send(child, half, stream=(done,))
