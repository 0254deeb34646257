"""Which algorithm is chosen, and what bad requests are told."""

from __future__ import annotations

import pytest
from plan_cases import plans_of

from mccl.plans import ALGORITHMS, Collective, Request, StepKind, build, check_algorithm, choose
from mccl.plans.choose import BUILDERS, Rule, default_table

KIB = 1024
AR = Collective.ALL_REDUCE


@pytest.mark.parametrize(
    ("collective", "small", "large"),
    [
        (AR, "recursive_doubling", "ring"),
        (Collective.REDUCE_SCATTER, "direct", "ring"),
        (Collective.ALL_GATHER, "direct", "ring"),
        (Collective.BROADCAST, "binomial", "chain"),
        (Collective.REDUCE, "binomial", "chain"),
        (Collective.GATHER, "binomial", "direct"),
        (Collective.SCATTER, "binomial", "direct"),
        (Collective.ALL_TO_ALL, "pairwise", "pairwise"),
        (Collective.BARRIER, "dissemination", "dissemination"),
    ],
)
def test_the_threshold_is_the_last_small_size(
    collective: Collective, small: str, large: str
) -> None:
    assert choose(collective, 64 * KIB, 4, 4) == small
    assert choose(collective, 64 * KIB + 1, 4, 4) == large
    assert choose(collective, 25, 4, 4, small_threshold=100) == small
    assert choose(collective, 26, 4, 4, small_threshold=100) == large


def test_low_precision_takes_the_one_rounding_where_there_is_more_than_one_addition() -> None:
    assert choose(AR, 2**20, 2, 4, low_precision=True) == "direct"
    assert choose(AR, 2**20, 2, 2, low_precision=True) == "ring"
    assert choose(AR, 2**20, 2, 200, low_precision=True) == "ring"
    assert choose(Collective.REDUCE_SCATTER, 2**20, 2, 8, low_precision=True) == "direct"


def test_compressed_on_the_wire_is_always_a_ring() -> None:
    assert choose(AR, 1, 4, 4, compressed=True) == "ring"
    assert choose(AR, 1, 4, 4, compressed=True, algo="recursive_doubling") == "ring"


def test_groups_of_ranks_take_two_levels() -> None:
    assert choose(AR, 2**20, 4, 24, grouped=True) == "two_level"
    for name in ("two_level", "two_level_doubling"):
        assert choose(AR, 2**20, 4, 24, algo=name) == "ring"
        assert choose(AR, 2**20, 4, 24, algo=name, grouped=True) == name


def test_override_applies_where_the_collective_has_it() -> None:
    assert choose(AR, 1, 4, 4, algo="double_tree") == "double_tree"
    assert choose(Collective.BROADCAST, 1, 4, 4, algo="double_tree") == "binomial"
    assert choose(AR, 1, 4, 4, algo="auto") == "recursive_doubling"


def test_unknown_override_is_told_the_accepted_names() -> None:
    with pytest.raises(ValueError, match=r"MCCL_ALGO='nccl'.*accepted: auto, .*ring.*two_level"):
        choose(AR, 1, 4, 4, algo="nccl")
    assert [check_algorithm(name) for name in ALGORITHMS] == list(ALGORITHMS)


def test_every_rule_names_an_algorithm_that_exists_and_the_last_always_fits() -> None:
    table = default_table()
    assert set(table) == set(BUILDERS) == set(Collective)
    for collective, rules in table.items():
        assert {rule.algorithm for rule in rules} <= set(BUILDERS[collective])
        assert rules[-1] == Rule(rules[-1].algorithm)


def test_a_fitted_table_replaces_the_default() -> None:
    table = {AR: (Rule("double_tree", min_world=8), Rule("ring"))}
    assert choose(AR, 1, 4, 8, table=table) == "double_tree"
    assert choose(AR, 1, 4, 7, table=table) == "ring"
    with pytest.raises(ValueError, match="no rule of the table fits ALL_REDUCE of 4 bytes on 2"):
        choose(AR, 1, 4, 2, table={AR: (Rule("ring", min_world=8),)})


def test_a_collective_without_the_algorithm_names_what_it_has() -> None:
    with pytest.raises(ValueError, match="BROADCAST has no algorithm 'ring'; it has: binomial, ch"):
        build(Collective.BROADCAST, "ring", 2, 0, Request(sizes=1))


@pytest.mark.parametrize(
    ("collective", "algorithm", "request_", "message"),
    [
        (AR, "ring", Request(sizes=-1), "not be negative, got -1"),
        (AR, "ring", Request(sizes=(1, 2, 3)), r"expected one element count, got \(1, 2, 3\)"),
        (Collective.ALL_GATHER, "ring", Request(sizes=(1, 2)), "each of 3 ranks, got 2 sizes"),
        (Collective.ALL_GATHER, "ring", Request(sizes=(1, 2, -3)), r"negative, got \(1, 2, -3\)"),
        (Collective.BROADCAST, "chain", Request(root=3), r"root must be in \[0, 3\), got 3"),
        (Collective.ALL_TO_ALL, "pairwise", Request((1, 1, 1), (2, 1, 1)), "rank 0 sends itself 1"),
        (AR, "two_level", Request(sizes=4), "two_level needs groups"),
        (AR, "two_level", Request(sizes=4, groups=((0, 1), (1, 2))), "exactly once"),
        (AR, "two_level_doubling", Request(sizes=4), "two_level_doubling needs groups"),
        (AR, "two_level_doubling", Request(sizes=4, groups=((0,), (1,))), "exactly once"),
    ],
)
def test_bad_requests(
    collective: Collective, algorithm: str, request_: Request, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(collective, algorithm, 3, 0, request_)


@pytest.mark.parametrize(("world", "rank"), [(0, 0), (2, 2), (2, -1)])
def test_ranks_outside_the_world(world: int, rank: int) -> None:
    with pytest.raises(ValueError, match=r"world size|rank must be"):
        build(AR, "recursive_doubling", world, rank, Request(sizes=1))


def test_the_ring_moves_no_more_than_it_must() -> None:
    plan = plans_of(AR, "ring", 8, Request(sizes=800))[3]
    sent = sum(s.count for s in plan.steps if s.kind is StepKind.SEND)
    assert sent == 2 * 7 * 100
    assert plan.send_peers == {4}
    assert plan.recv_peers == {2}


def test_between_groups_each_member_carries_its_share() -> None:
    groups = (tuple(range(4)), tuple(range(4, 8)))
    for plan in plans_of(AR, "two_level", 8, Request(sizes=800, groups=groups)):
        own = next(g for g in groups if plan.rank in g)
        across = sum(s.count for s in plan.steps if s.kind is StepKind.SEND and s.peer not in own)
        assert across == 800 // 4


@pytest.mark.parametrize(
    ("groups", "across"),
    [
        # 3 groups fold: one hands over, two exchange, one is handed the result.
        (tuple(tuple(range(k, 24, 3)) for k in range(3)), 3),
        (tuple(tuple(range(k, 24, 4)) for k in range(4)), 2),
    ],
)
def test_small_payloads_leave_a_group_only_where_groups_meet(
    groups: tuple[tuple[int, ...], ...], across: int
) -> None:
    """Ranks are dealt out over the switches: the flat algorithm crosses in every round."""
    home = {rank: g for g, group in enumerate(groups) for rank in group}

    def crossings(name: str) -> int:
        """Sends between groups of one payload, of the rank that has most."""
        plans = plans_of(AR, name, 24, Request(sizes=1, groups=groups))
        sends = [[s.peer for s in p.steps if s.kind is StepKind.SEND] for p in plans]
        return max(
            sum(home[peer] != home[rank] for peer in peers) for rank, peers in enumerate(sends)
        )

    assert crossings("two_level_doubling") <= across
    assert crossings("recursive_doubling") > across
