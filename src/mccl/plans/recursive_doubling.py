"""Recursive doubling all-reduce: ``⌈log2 N⌉`` rounds, each moving the whole payload.

The choice where latency, not bandwidth, sets the time. For a world that is no power of
two, with ``extra`` ranks over the largest power below it, the first ``2 · extra`` ranks
pair up: the even one hands its input to the odd one and receives the result at the end
(Thakur, Rabenseifner and Gropp, Int. J. High Perform. Comput. Appl. 19, 2005).

Ranks that meet in a round stand for neighbouring, contiguous ranges of ranks. The lower
range is always the left operand, so every rank evaluates the same expression and holds
the same bits, though each computes it for itself.
"""

from __future__ import annotations

from mccl.plans.emit import Emitter, Number
from mccl.plans.plan import Collective, Plan, Region


def all_reduce(world: int, rank: int, count: int) -> Plan:
    """Recursive doubling in place. External 0: ``count`` elements, input and output.

    A round reduces into the memory it is still sending: element x is overwritten only
    once element x has been sent.
    """
    b = Emitter(Collective.ALL_REDUCE, "recursive_doubling", world, rank, (count,))
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
    bit = 1
    while bit < core:
        other = place ^ bit
        peer = 2 * other + 1 if other < extra else other + extra
        sent = b.send(peer, whole, stream=(got,))
        got = b.recv_reduce(
            peer,
            whole,
            whole,
            stream=(sent,),
            final=2 * bit == core,
            incoming_first=other < place,
        )
        bit *= 2
    if folded:
        b.send(rank - 1, whole, stream=(got,))
    return b.build()
