"""Plans run element by element in random order give what the collectives promise, and so
does whatever else the checker lets pass."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

import pytest
from plan_cases import ALL, plans_of, ragged, switches
from plan_interpreter import Interpreter, Value

from mccl.plans import Collective, Dep, DepKind, Plan, Request, Step, chain
from mccl.plans.check import check
from mccl.plans.contracts import Contract, contract
from mccl.plans.emit import per_rank
from mccl.plans.faults import PlanError

WITHOUT_VALUES = Collective.BARRIER
FINISHED = 10**9


def mixed(a: Value, b: Value) -> Value:
    """Neither associative nor commutative: shows any difference in operand order."""
    return (a * 31 + b * 17 + 7) % 1_000_003


def summed(a: Value, b: Value) -> Value:
    return a + b


def contracts_of(plans: Sequence[Plan], requests: Sequence[Request]) -> list[Contract]:
    world = len(plans)
    return [contract(plans[0].collective, world, r, requests) for r in range(world)]


def run(
    plans: Sequence[Plan], requests: Sequence[Request], rng: random.Random, combine: object = summed
) -> tuple[list[list[list[Value | None]]], list[list[list[Value | None]]]]:
    """(inputs, buffers after the run); buffers that hold no input begin unset."""
    before: list[list[list[Value | None]]] = []
    for plan, terms in zip(plans, contracts_of(plans, requests), strict=True):
        buffers: list[list[Value | None]] = []
        for i, size in enumerate(plan.external):
            held = i in terms.inputs
            buffers.append([rng.randrange(1000) if held else None for _ in range(size)])
        before.append(buffers)
    after = [[list(b) for b in buffers] for buffers in before]
    finish = (lambda v: v + FINISHED) if plans[0].collective in REDUCING else (lambda v: v)
    Interpreter(plans, after, combine, finish, rng).run()  # type: ignore[arg-type]
    return before, after


REDUCING = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)


def flat(buffers: Sequence[Sequence[Value | None]]) -> list[Value | None]:
    return [x for b in buffers for x in b]


def expected(
    collective: Collective, rank: int, requests: Sequence[Request], before: list
) -> list[Value | None] | None:
    """The result of ``rank`` end to end, from the meaning of the collective; None: no result."""
    world, request = len(requests), requests[rank]
    root = request.root
    if collective in REDUCING:
        inputs = [flat(b[:-1] if len(b) > 1 else b) for b in before]
        if collective is Collective.REDUCE:
            inputs = [b[0] for b in before]
        totals = [sum(column) + FINISHED for column in zip(*inputs, strict=True)]
        if collective is Collective.REDUCE_SCATTER:
            sizes = per_rank(request.sizes, world)
            return totals[sum(sizes[:rank]) : sum(sizes[: rank + 1])]
        return totals if collective is Collective.ALL_REDUCE or rank == root else None
    if collective is Collective.BROADCAST:
        return before[root][0]
    if collective in (Collective.ALL_GATHER, Collective.GATHER):
        gathers = collective is Collective.ALL_GATHER or rank == root
        return flat([b[0] for b in before]) if gathers else None
    if collective is Collective.SCATTER:
        sizes = per_rank(request.sizes, world)
        return flat(before[root][:-1])[sum(sizes[:rank]) : sum(sizes[: rank + 1])]
    result = []
    for source in range(world):
        sizes = per_rank(requests[source].sizes, world)
        inputs = flat([b for b in before[source] if None not in b])
        result += inputs[sum(sizes[:rank]) : sum(sizes[: rank + 1])]
    return result


def assert_right(plans: Sequence[Plan], requests: Sequence[Request], rng: random.Random) -> None:
    before, after = run(plans, requests, rng)
    collective = plans[0].collective
    if collective is WITHOUT_VALUES:
        return
    for plan, terms in zip(plans, contracts_of(plans, requests), strict=True):
        want = expected(collective, plan.rank, requests, before)
        got = flat([after[plan.rank][o.region.buffer] for o in terms.owed[:1]])
        if len(terms.owed) > 1:
            got = flat([after[plan.rank][b] for b in sorted({o.region.buffer for o in terms.owed})])
        assert got == ([] if want is None else want)
        for i in terms.inputs - terms.writable:
            assert after[plan.rank][i] == before[plan.rank][i], "the input was modified"


@pytest.mark.parametrize(("collective", "algorithm"), ALL)
def test_random_sizes_and_schedules(collective: Collective, algorithm: str) -> None:
    rng = random.Random(f"run {collective.name} {algorithm}")
    for world in range(1, 10):
        for _ in range(4):
            requests = ragged(collective, world, rng)
            assert_right(plans_of(collective, algorithm, world, requests), requests, rng)


@pytest.mark.parametrize("algorithm", [a for c, a in ALL if c is Collective.ALL_REDUCE])
def test_all_reduce_is_bit_identical_on_all_ranks(algorithm: str) -> None:
    rng = random.Random(algorithm)
    for world in range(2, 14):
        requests = [Request(sizes=world + 2, groups=switches(world))] * world
        plans = plans_of(Collective.ALL_REDUCE, algorithm, world, requests)
        _, after = run(plans, requests, rng, mixed)
        assert all(buffers == after[0] for buffers in after)


@pytest.mark.parametrize(("collective", "algorithm"), [c for c in ALL if c[0] in REDUCING])
def test_same_result_from_run_to_run(collective: Collective, algorithm: str) -> None:
    requests = [Request(sizes=7, groups=switches(7))] * 7
    plans = plans_of(collective, algorithm, 7, requests)
    results = []
    for _ in range(4):
        rng = random.Random(1)
        before, _ = run(plans, requests, rng, mixed)
        schedule = random.Random(len(results))
        after = [[list(b) for b in buffers] for buffers in before]
        Interpreter(plans, after, mixed, lambda v: v, schedule).run()
        results.append(after)
    assert all(r == results[0] for r in results)


def mutant(plans: Sequence[Plan], rng: random.Random) -> list[Plan]:
    """One random small change to one or all ranks' plans."""
    kind = rng.choice(("drop", "weaken", "strengthen", "swap", "flip", "none", "shift"))
    victims = range(len(plans)) if rng.random() < 0.5 else [rng.randrange(len(plans))]
    where = rng.random()
    changed = list(plans)
    for r in victims:
        steps = list(plans[r].steps)
        if len(steps) >= 2:
            _mutate(steps, kind, int(where * (len(steps) - 1)), rng)
        changed[r] = dataclasses.replace(plans[r], steps=tuple(steps))
    return changed


def _mutate(steps: list[Step], kind: str, i: int, rng: random.Random) -> None:
    step = steps[i]
    if kind == "drop":
        steps[i] = dataclasses.replace(step, deps=step.deps[1:])
    elif kind in ("weaken", "strengthen"):
        to = DepKind.STREAM if kind == "weaken" else DepKind.FULL
        steps[i] = dataclasses.replace(step, deps=tuple(Dep(d.step, to) for d in step.deps))
    elif kind == "swap":
        steps[i], steps[i + 1] = steps[i + 1], steps[i]
    elif kind == "flip":
        steps[i] = dataclasses.replace(step, incoming_first=not step.incoming_first)
    elif kind == "shift" and i:
        extra = Dep(rng.randrange(i), rng.choice(list(DepKind)))
        steps[i] = dataclasses.replace(step, deps=(*step.deps, extra))


@pytest.mark.parametrize(("collective", "algorithm"), ALL)
def test_whatever_passes_the_check_runs_right(collective: Collective, algorithm: str) -> None:
    rng = random.Random(f"mutants {collective.name} {algorithm}")
    passed = 0
    for _ in range(150):
        world = rng.randint(2, 6)
        requests = ragged(collective, world, rng)
        plans = mutant(plans_of(collective, algorithm, world, requests), rng)
        try:
            check(plans, requests)
        except PlanError:
            continue
        passed += 1
        for _ in range(2):
            assert_right(plans, requests, rng)
    assert passed > 20


@pytest.mark.parametrize("count", [8, 9, 23, 64, 131])
def test_a_chain_in_many_segments(count: int) -> None:
    """More segments than scratch slots, of uneven sizes: the slots are used again and again."""
    rng = random.Random(count)
    for world in (2, 3, 5):
        requests = [Request(sizes=count, root=1)] * world
        plans = [chain.reduce(world, r, count, 1, min_segment=2) for r in range(world)]
        if world > 2:
            assert any(dep.kind is DepKind.FULL for step in plans[2].steps for dep in step.deps)
        check(plans, requests)
        assert_right(plans, requests, rng)
