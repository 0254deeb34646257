"""The table made from a model chooses within 5% of the best algorithm."""

from __future__ import annotations

import pytest

from mccl.model import Network, all_reduce_seconds, blocks
from mccl.model.choose import best_group_size, candidates, rules, table
from mccl.plans import Collective, choose

MIB = 1 << 20
GRID = [1000, 50_000, 300_000, 777_777, 2 * MIB, 5 * MIB, 13 * MIB, 90 * MIB]
FAST = {"hop": 2e-5, "link": 1e8}
PAPER: dict[str, float] = {}


@pytest.mark.parametrize(
    ("world", "group", "network"),
    [
        (2, None, PAPER),
        (8, None, PAPER),
        (16, None, FAST),
        (24, None, PAPER),
        (24, 8, PAPER),
        (32, 8, FAST),
    ],
)
def test_within_five_per_cent_of_the_best(
    world: int, group: int | None, network: dict[str, float]
) -> None:
    """Sizes off the grid on which the table was made."""
    hosts = Network(world, **network)  # type: ignore[arg-type]
    groups = None if group is None else blocks(world, group)
    made = table(hosts, world, groups=groups)
    for nbytes in GRID:
        times = {
            name: all_reduce_seconds(name, hosts, nbytes, groups=groups)
            for name in candidates(world, groups)
        }
        name = choose(
            Collective.ALL_REDUCE,
            nbytes // 4,
            4,
            world,
            grouped=groups is not None,
            table=made,
        )
        assert times[name] <= 1.05 * min(times.values()), (nbytes, name, times)


def test_a_table_for_groups_serves_ungrouped_ranks() -> None:
    groups = blocks(24, 8)
    made = table(Network(24), 24, groups=groups)
    for nbytes in GRID:
        assert choose(Collective.ALL_REDUCE, nbytes // 4, 4, 24, table=made) != "two_level"
    assert choose(Collective.ALL_REDUCE, MIB, 4, 24, grouped=True, table=made) == "two_level"


def test_rules_are_few_and_end_without_a_bound() -> None:
    sizes = [1, 2, 4, 8]
    made = rules({"a": [1.0, 1.0, 3.0, 3.0], "b": [2.0, 2.0, 2.0, 2.0]}, sizes)
    assert [(rule.algorithm, rule.max_bytes) for rule in made] == [("a", 2), ("b", None)]


def test_group_size_for_200_hosts() -> None:
    size, seconds = best_group_size(Network(200), 200, 25 * MIB)
    assert size in (40, 50)
    assert seconds < 0.4 * all_reduce_seconds("ring", Network(200), 25 * MIB)


def test_no_groups_where_a_flat_ring_is_as_good() -> None:
    assert best_group_size(Network(8), 8, 64 * MIB)[0] == 8
