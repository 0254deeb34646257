"""Which all-reduce these settings would choose, by size and world."""

from __future__ import annotations

from collections.abc import Iterator

from mccl.config import Config, Launch
from mccl.doctor.finding import Finding, Status
from mccl.plans import Collective, choose
from mccl.plans.tuning import Groups
from mccl.process_group.calls import tuning_of
from mccl.process_group.grouping import Grouping

SECTION = "algorithms"
WORLDS = (2, 8, 24)
"""Shown where neither a tuning file nor a launcher says how many ranks there are."""

SIZES = (("1 KiB", 1 << 10), ("64 KiB", 1 << 16), ("1 MiB", 1 << 20), ("25 MiB", 25 << 20))


def examine() -> Iterator[Finding]:
    """A line a world: float32 sums, and where the choice comes from."""
    config = Config.from_env()
    tuning = tuning_of(config)
    world = Launch.from_env().world_size
    if world is not None:
        cases = [(world, _groups(config, world))]
    elif tuning is not None:
        cases = [(entry.world, entry.groups) for entry in tuning.entries]
    else:
        cases = [(number, _groups(config, number)) for number in WORLDS]
    for ranks, groups in cases:
        table = None if tuning is None else tuning.table(ranks, groups, config.small_msg_threshold)
        chosen = [
            (
                label,
                choose(
                    Collective.ALL_REDUCE,
                    nbytes // 4,
                    4,
                    ranks,
                    small_threshold=config.small_msg_threshold,
                    algo=config.algo,
                    compressed=config.wire_dtype is not None,
                    grouped=groups is not None,
                    table=table,
                ),
            )
            for label, nbytes in SIZES
        ]
        source = "MCCL_ALGO" if config.algo != "auto" else "default" if table is None else "tuned"
        shown = ", ".join(f"{label} {name}" for label, name in chosen)
        sizes = "" if groups is None else f", {len(groups)} groups"
        yield Finding(SECTION, f"{ranks} ranks{sizes}", Status.OK, f"{shown} ({source})")


def _groups(config: Config, world: int) -> Groups | None:
    """Groups as far as the settings alone say; subnets are known in a job only."""
    if isinstance(config.groups, tuple):
        listed = {rank for group in config.groups for rank in group}
        if not listed >= set(range(world)):
            return None
    return Grouping(config.groups, range(world)).get(lambda: [None] * world)
