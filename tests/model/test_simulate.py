"""The simulator against closed forms, against itself without symmetry, and with disturbances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mccl.model import PAPER, Hockney, Network, SimulationError, all_reduce_seconds, blocks, run
from mccl.model.predict import symmetry
from mccl.plans import (
    Collective,
    Dep,
    DepKind,
    Plan,
    PlanBuilder,
    Region,
    Request,
    Step,
    StepKind,
    build,
)

SIZES = [4 << 10, 1 << 20, 24 << 20]
SLOW = Network(24, link=1e8, hop=1e-4)


def plans(algorithm: str, world: int, count: int, groups: object = None) -> list[Plan]:
    """All ranks' plans of an all-reduce."""
    request = Request(sizes=count, groups=groups)  # type: ignore[arg-type]
    return [build(Collective.ALL_REDUCE, algorithm, world, r, request) for r in range(world)]


@pytest.mark.parametrize("world", [2, 3, 8, 17])
@pytest.mark.parametrize("nbytes", SIZES)
def test_ring_has_its_closed_form(world: int, nbytes: int) -> None:
    count = nbytes // 4 // world * world
    seconds = run(plans("ring", world, count), Network(world)).seconds
    assert seconds == pytest.approx(PAPER.ring(world, 4 * count), rel=1e-6)


@pytest.mark.parametrize("world", [2, 4, 16])
@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize("algorithm", ["recursive_doubling", "rabenseifner"])
def test_doublings_have_their_closed_forms(algorithm: str, world: int, nbytes: int) -> None:
    seconds = all_reduce_seconds(algorithm, Network(world), nbytes)
    assert seconds == pytest.approx(getattr(PAPER, algorithm)(world, nbytes), rel=1e-3)


@pytest.mark.parametrize("collective", [Collective.REDUCE_SCATTER, Collective.ALL_GATHER])
def test_ring_halves_have_their_closed_forms(collective: Collective) -> None:
    world, each = 6, 1 << 18
    half = [build(collective, "ring", world, r, Request(sizes=each)) for r in range(world)]
    form = PAPER.all_gather if collective is Collective.ALL_GATHER else PAPER.reduce_scatter
    seconds = run(half, Network(world)).seconds
    assert seconds == pytest.approx(form(world, 4 * each * world), rel=1e-6)


def test_slow_addition_sets_the_pace() -> None:
    slow = Hockney(alpha=1e-5, beta=1e-9, gamma=4e-9)
    count = 1 << 20
    seconds = run(plans("ring", 4, count), Network.of(slow, 4)).seconds
    assert seconds == pytest.approx(slow.ring(4, 4 * count), rel=0.02)


@pytest.mark.parametrize("nbytes", SIZES)
@pytest.mark.parametrize(
    ("algorithm", "groups"),
    [("ring", None), ("two_level", blocks(24, 8)), ("two_level", blocks(24, 2))],
)
def test_one_rank_of_a_kind_stands_for_all(
    algorithm: str, groups: tuple[tuple[int, ...], ...] | None, nbytes: int
) -> None:
    assert symmetry(algorithm, SLOW, 24, groups) is not None
    few = all_reduce_seconds(algorithm, SLOW, nbytes, groups=groups)
    count = -(-nbytes // 4 // 24) * 24
    every = run(plans(algorithm, 24, count, groups), SLOW).seconds
    assert few == pytest.approx(every, rel=1e-2)


def test_symmetry_holds_across_switches() -> None:
    groups = blocks(24, 8)
    network = replace(SLOW, switches=groups, oversubscription=16.0)
    few = all_reduce_seconds("two_level", network, 24 << 20, groups=groups)
    every = run(plans("two_level", 24, 6 << 20, groups), network).seconds
    assert few == pytest.approx(every, rel=0.03)


def test_disturbed_networks_have_no_symmetry() -> None:
    assert symmetry("ring", replace(SLOW, late={3: 1.0}), 24, None) is None
    assert symmetry("ring", replace(SLOW, switches=blocks(24, 8)), 24, None) is None
    assert symmetry("two_level", SLOW, 24, ((0,), tuple(range(1, 24)))) is None


def test_a_ring_is_as_fast_as_its_slowest_link() -> None:
    count = 8 << 20
    quick = run(plans("ring", 8, count), replace(SLOW, hosts=8)).seconds
    slow = run(plans("ring", 8, count), replace(SLOW, hosts=8, speed={3: 0.25})).seconds
    assert slow == pytest.approx(4 * quick, rel=0.02)


def test_everyone_waits_for_a_late_rank() -> None:
    outcome = run(plans("ring", 4, 1024), replace(SLOW, hosts=4, late={2: 0.5}))
    assert min(outcome.finish) > 0.5


def test_background_traffic_takes_its_share() -> None:
    count = 8 << 20
    alone = run(plans("ring", 4, count), replace(SLOW, hosts=4)).seconds
    shared = run(plans("ring", 4, count), replace(SLOW, hosts=4, background=0.5)).seconds
    assert shared == pytest.approx(2 * alone, rel=0.01)


def test_messages_cost_time_of_their_own() -> None:
    """Two ends of each of the six messages that a rank sends in turn."""
    free = run(plans("ring", 4, 4), replace(SLOW, hosts=4)).seconds
    dear = run(plans("ring", 4, 4), replace(SLOW, hosts=4, message=1e-3)).seconds
    assert dear - free == pytest.approx(6 * 2e-3, rel=0.01)


def exchange(world: int, pairs: Sequence[tuple[int, int]], count: int) -> list[Plan]:
    """Plans in which each pair's first rank sends ``count`` elements to the second."""
    made = Collective.ALL_TO_ALL
    builders = [PlanBuilder(made, "made", world, r, (count,)) for r in range(world)]
    whole = Region(0, 0, count)
    for a, b in pairs:
        builders[a].add(Step(StepKind.SEND, b, None, whole))
        builders[b].add(Step(StepKind.RECV, a, whole, None))
    return [b.build() for b in builders]


@pytest.mark.parametrize("pairs", [[(0, 1), (0, 2), (0, 3)], [(1, 0), (2, 0), (3, 0)]])
def test_connections_share_a_host_link(pairs: list[tuple[int, int]]) -> None:
    count = 1 << 20
    network = Network(4, link=1e8, hop=1e-4)
    outcome = run(exchange(4, pairs, count), network)
    ends = sorted(outcome.finish)[-2:]
    assert outcome.seconds == pytest.approx(3 * 4 * count / 1e8 + 1e-4, rel=0.01)
    # Fair turns: no one is done long before the others.
    if pairs[0][0] == 0:
        assert ends[0] > 0.85 * ends[1]


def test_flows_share_an_uplink() -> None:
    count = 1 << 20
    network = Network(4, link=1e8, hop=0.0, switches=((0, 1), (2, 3)), oversubscription=2.0)
    one = run(exchange(4, [(0, 2)], count), network).seconds
    two = run(exchange(4, [(0, 2), (1, 3)], count), network).seconds
    inside = run(exchange(4, [(0, 1), (2, 3)], count), network).seconds
    assert one == pytest.approx(inside, rel=0.01)
    assert two == pytest.approx(2 * inside, rel=0.05)


def test_two_level_beats_a_scattered_ring_behind_slow_uplinks() -> None:
    """24 hosts on 3 switches whose uplinks are as fast as two hosts: ranks dealt out in turn."""
    switches = tuple(tuple(range(s, 24, 3)) for s in range(3))
    network = replace(SLOW, switches=switches, oversubscription=4.0)
    flat = all_reduce_seconds("ring", network, 16 << 20)
    grouped = all_reduce_seconds("two_level", network, 16 << 20, groups=switches)
    assert flat > 2 * grouped


def test_a_thousand_ranks() -> None:
    network = Network(1024)
    assert all_reduce_seconds("ring", network, 25 << 20) == pytest.approx(2046 * 306e-6, rel=0.01)
    assert all_reduce_seconds("recursive_doubling", network, 4096) == pytest.approx(
        10 * 306e-6, rel=0.02
    )
    two = all_reduce_seconds("two_level", network, 25 << 20, groups=blocks(1024, 64))
    assert two < 0.15 * 2046 * 306e-6


def test_plans_that_do_not_match() -> None:
    made = exchange(2, [(0, 1)], 8)
    with pytest.raises(SimulationError, match="not what rank 1 receives"):
        run([made[0], exchange(2, [(0, 1)], 9)[1]], Network(2))
    with pytest.raises(SimulationError, match="do not fit"):
        run(made, Network(1))


def test_plans_that_wait_for_each_other() -> None:
    whole = Region(0, 0, 8)
    stuck = []
    for rank in (0, 1):
        b = PlanBuilder(Collective.ALL_TO_ALL, "stuck", 2, rank, (8,))
        got = b.add(Step(StepKind.RECV, 1 - rank, whole, None))
        b.add(Step(StepKind.SEND, 1 - rank, None, whole, (Dep(got, DepKind.FULL),)))
        stuck.append(b.build())
    with pytest.raises(SimulationError, match="never finish"):
        run(stuck, Network(2))


def test_networks_are_checked() -> None:
    with pytest.raises(ValueError, match="hosts, link"):
        Network(0)
    with pytest.raises(ValueError, match="background"):
        Network(2, background=1.0)
    with pytest.raises(ValueError, match="speed of host 1"):
        Network(2, speed={1: 0.0})
    with pytest.raises(ValueError, match="host 5"):
        Network(2, late={5: 1.0})
    with pytest.raises(ValueError, match="switches must hold"):
        Network(3, switches=((0, 1),))
    with pytest.raises(ValueError, match="at least one member"):
        blocks(4, 0)


def test_blocks_are_even() -> None:
    assert blocks(10, 4) == ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
    assert blocks(6, 3) == ((0, 1, 2), (3, 4, 5))
