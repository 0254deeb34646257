"""What a fleet would do: every world size, bucket and algorithm, and advice in words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from mccl.model.choose import best_group_size
from mccl.model.hockney import bus_bandwidth
from mccl.model.network import Network, blocks
from mccl.model.predict import all_reduce_seconds
from mccl.model.step import Step, Workload, step

MIB = 1 << 20
WORTH = 0.02
"""A gain below this share is not worth advice."""

GOOD = 0.90
"""Efficiency with which nobody needs advice."""

MAX_ACCUMULATE = 16


@dataclass(frozen=True, slots=True)
class Row:
    """One prediction. ``group``: members a group of a two-level ring, else 0. ``seconds``: of one
    bucket's all-reduce; ``busbw``: bytes a second; ``share``: of TCP goodput. ``step``: with the
    workload, None without one."""

    world: int
    bucket: int
    algorithm: str
    group: int
    seconds: float
    busbw: float
    share: float
    step: Step | None


def forecast(
    network: Network,
    worlds: Iterable[int],
    buckets: Sequence[int],
    workload: Workload | None = None,
    group: int | None = None,
) -> list[Row]:
    """Rows by world, bucket and algorithm.

    ``group``: members a group of the two-level ring; None: the best that divides the world.
    Where uplinks are slow or far (``oversubscription``, ``uplink_hop``), groups are switches.
    """
    return [
        row
        for world in worlds
        if world > 1
        for bucket in buckets
        for row in _rows(replace(network, hosts=world), world, bucket, workload, group)
    ]


def _rows(
    network: Network, world: int, bucket: int, workload: Workload | None, group: int | None
) -> list[Row]:
    members = group
    if members is None:
        members = best_group_size(replace(network, switches=()), world, bucket)[0]
    groups = blocks(world, members)
    contended = network.oversubscription > 1 or network.uplink_hop > 0
    if len(groups) > 1 and contended:
        network = replace(network, switches=groups)
    names = ["ring"]
    if 1 < len(groups) < world:
        names.append("two_level")
    names += ["rabenseifner", "double_tree"]
    rows = []
    for name in names:
        time = partial(
            all_reduce_seconds,
            name,
            network,
            groups=groups if name == "two_level" else None,
        )
        seconds = time(bucket)
        busbw = bus_bandwidth(world, bucket, seconds)
        found = None
        if workload is not None:
            sizes = workload.buckets(bucket)
            found = step(workload, [time(sizes[0])] * len(sizes))
        rows.append(
            Row(
                world,
                bucket,
                name,
                members if name == "two_level" else 0,
                seconds,
                busbw,
                busbw / network.rate(-1),
                found,
            )
        )
    return rows


def best(rows: Sequence[Row], world: int, bucket: int) -> Row:
    """The fastest row of a world and bucket."""
    return min(
        (row for row in rows if (row.world, row.bucket) == (world, bucket)),
        key=lambda row: row.seconds,
    )


def bucket_cap_mb(network: Network, world: int) -> int:
    """MiB of the smallest bucket with which a flat ring of ``world`` hosts is bound by
    bandwidth, 10% to spare. Smaller ones waste the link, larger ones leave more of the last
    bucket exposed."""
    return max(1, math.ceil(1.1 * network.hockney.crossover_bytes(world) / MIB))


def advice(rows: Sequence[Row], network: Network, workload: Workload | None = None) -> list[str]:
    """Sentences for the largest world in ``rows``, each with the figures it rests on."""
    if not rows:
        return ["One host needs no network: nothing to advise."]
    world = max(row.world for row in rows)
    network = replace(network, hosts=world)
    said = []
    for number, bucket in enumerate(dict.fromkeys(row.bucket for row in rows)):
        here = [row for row in rows if (row.world, row.bucket) == (world, bucket)]
        said += _wire_advice(here, network, first=number == 0)
    if workload is not None:
        said += _step_advice(rows, network, world, workload)
    return said or [f"{world} hosts need nothing changed: a flat ring is bound by the links alone."]


def _wire_advice(here: Sequence[Row], network: Network, first: bool) -> list[str]:
    flat = next(row for row in here if row.algorithm == "ring")
    mb = f"{flat.bucket / MIB:g} MB"
    crossover = network.hockney.crossover_world(flat.bucket)
    said = []
    if first and flat.world > crossover:
        said.append(
            f"Raise bucket_cap_mb to {bucket_cap_mb(network, flat.world)}: with {mb} buckets a "
            f"flat ring waits for hops from {crossover:.0f} hosts on; at {flat.world} it reaches "
            f"{flat.share:.0%} of TCP goodput."
        )
    for row in here:
        if row.algorithm == "two_level" and row.share > flat.share * (1 + WORTH):
            said.append(
                f"Use two levels: MCCL_GROUPS={row.group} makes it {row.share:.0%} instead of "
                f"{flat.share:.0%} of TCP goodput for {mb} buckets on {flat.world} hosts."
            )
        if row.algorithm == "double_tree" and row.share > flat.share * (1 + WORTH):
            said.append(
                f"Where no groups can be had, MCCL_ALGO=double_tree makes it {row.share:.0%} "
                f"for {mb} buckets."
            )
    return said


def _step_advice(
    rows: Sequence[Row], network: Network, world: int, workload: Workload
) -> list[str]:
    steps = [(row, row.step) for row in rows if row.world == world and row.step is not None]
    row, found = min(steps, key=lambda pair: pair[1].seconds)
    if found.efficiency >= GOOD:
        return []
    mb = f"{row.bucket / MIB:g} MB"
    said = []
    sizes = workload.buckets(row.bucket)
    taken = [found.communication / len(sizes)] * len(sizes)
    for accumulate in range(2, MAX_ACCUMULATE + 1):
        more = step(workload, taken, accumulate=accumulate)
        if more.efficiency >= GOOD or accumulate == MAX_ACCUMULATE:
            said.append(
                f"Accumulate gradients over {accumulate} batches: {workload.name} on {world} hosts "
                f"goes from {found.efficiency:.0%} to {more.efficiency:.0%} efficiency ({mb} "
                f"buckets, {row.algorithm}); a larger batch a host does the same."
            )
            break
    halved = all_reduce_seconds("ring", network, sizes[0], wire_itemsize=2)
    narrow = step(workload, [halved] * len(sizes))
    if narrow.efficiency > found.efficiency + WORTH:
        said.append(
            f"Send bfloat16 (MCCL_WIRE_DTYPE=bfloat16): half the bytes, {found.efficiency:.0%} to "
            f"{narrow.efficiency:.0%} efficiency."
        )
    return said
