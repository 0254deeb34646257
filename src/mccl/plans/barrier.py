"""Dissemination barrier: ``⌈log2 N⌉`` rounds of one-element messages.

In round k rank r tells r + 2^k that it, and everyone it has heard of, has arrived
(Hensgen, Finkel and Manber, Int. J. Parallel Program. 17, 1988).
"""

from __future__ import annotations

from mccl.plans.emit import Emitter, Number
from mccl.plans.plan import Collective, Plan, Region


def barrier(world: int, rank: int) -> Plan:
    """Dissemination barrier. No external buffers; messages are one scratch element each,
    whose value means nothing (run it with a one-byte dtype)."""
    b = Emitter(Collective.BARRIER, "dissemination", world, rank, ())
    if world == 1:
        return b.build()
    token = Region(b.scratch(1), 0, 1)
    heard: list[Number] = []
    distance = 1
    while distance < world:
        b.send((rank + distance) % world, token, full=heard)
        inbox = Region(b.scratch(1), 0, 1)
        heard.append(b.recv((rank - distance) % world, inbox))
        distance *= 2
    return b.build()
