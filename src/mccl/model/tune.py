"""Entries of a tuning file from a modelled network: for every collective that has a choice, the
algorithm that the simulation says is fastest for each size.
"""

from __future__ import annotations

from mccl.model.choose import candidates, fastest
from mccl.model.network import Groups, Network
from mccl.model.predict import collective_seconds
from mccl.plans import Collective
from mccl.plans.choose import BUILDERS, DIRECT_MAX_WORLD, Rule
from mccl.plans.tuning import TUNED, Entry

ROOTED = (Collective.GATHER, Collective.SCATTER)
"""Their direct algorithm connects the root alone with everybody, which is offered always."""


def offered(collective: Collective, world: int, groups: Groups | None) -> tuple[str, ...]:
    """The algorithms of ``collective`` that are a choice for ``world`` ranks."""
    if collective is Collective.ALL_REDUCE:
        return candidates(world, groups)
    names = BUILDERS[collective]
    everybody = world <= DIRECT_MAX_WORLD or collective in ROOTED
    return tuple(name for name in names if name != "direct" or everybody)


def entry(network: Network, world: int, groups: Groups | None = None) -> Entry:
    """What is fastest on ``network`` for its first ``world`` hosts, in ``groups`` or without."""

    def of(collective: Collective) -> tuple[Rule, ...]:
        def time(name: str, nbytes: int) -> float:
            return collective_seconds(collective, name, network, nbytes, world=world, groups=groups)

        return fastest(offered(collective, world, groups), time)

    return Entry(world, groups, {collective: of(collective) for collective in TUNED})
