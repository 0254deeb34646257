"""Pairwise exchange: all-to-all in which round k pairs rank r with r+k and r-k.

At any time each rank sends to a few peers and is sent to by a few, instead of everyone
falling on rank 0 first (MPICH's pairwise exchange).
"""

from __future__ import annotations

from mccl.plans.emit import Emitter, Number, Sizes, extents, per_rank, pieces
from mccl.plans.plan import Collective, Plan

IN_FLIGHT = 4
"""Sends of one rank under way at a time: enough that a slow peer does not stall the
others, few enough that buffers and incast stay small."""


def all_to_all(
    world: int,
    rank: int,
    send_sizes: Sizes,
    recv_sizes: Sizes | None = None,
    *,
    list_input: bool = False,
    list_output: bool = False,
) -> Plan:
    """Pairwise all-to-all.

    ``send_sizes[p]`` elements go to rank p, ``recv_sizes[p]`` come from it (the same as
    ``send_sizes`` when left out). External 0: input, the pieces for ranks 0, 1, … end to
    end; with ``list_input`` externals ``0 .. world-1``. After them the output: one
    external with the pieces from ranks 0, 1, …, or ``world`` of them with ``list_output``.
    """
    to = per_rank(send_sizes, world)
    by = per_rank(send_sizes if recv_sizes is None else recv_sizes, world)
    if to[rank] != by[rank]:
        raise ValueError(
            f"rank {rank} sends itself {to[rank]} elements but expects {by[rank]} from itself; "
            "the two must be equal"
        )
    inputs = extents(to, separate=list_input)
    external = (*inputs, *extents(by, separate=list_output))
    b = Emitter(Collective.ALL_TO_ALL, "pairwise", world, rank, external)
    outgoing = pieces(to, separate=list_input)
    incoming = pieces(by, len(inputs), separate=list_output)
    b.copy(incoming[rank], outgoing[rank])
    sent: list[Number] = []
    for k in range(1, world):
        target, origin = (rank + k) % world, (rank - k) % world
        before = sent[-IN_FLIGHT] if len(sent) >= IN_FLIGHT else None
        number = b.send(target, outgoing[target], full=(before,))
        if number is not None:
            sent.append(number)
        b.recv(origin, incoming[origin])
    return b.build()
