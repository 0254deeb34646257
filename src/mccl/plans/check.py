"""Proof of a collective: all ranks' plans together, by symbolic execution.

``check`` shows, for one set of plans:

1. every step is well formed, and only outputs are written (``hazards.check_structure``);
2. every pair of conflicting accesses is ordered by a dependency path, so that any order
   the engine may run steps in gives the same result (``hazards.check_hazards``);
3. sends and receives match one to one, in order and in size, on every connection;
4. the plans finish even if a send blocks until its receive is posted, and with no more
   than one element held back a receive (``execution``);
5. every output element is exactly what the collective owes: for a reduction one
   expression that holds each rank's element once, marked final once; and for an
   all-reduce the same expression on every rank, hence the same bits.

What a proof says holds for the sizes it was made with; the test suite makes it for every
world size from 1 to 64 and counts around the awkward ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from mccl.plans.contracts import Contract, Owed, contract
from mccl.plans.execution import Execution, bits
from mccl.plans.faults import PlanError, show_step, writers
from mccl.plans.hazards import check_hazards, check_structure, fifo_predecessors
from mccl.plans.plan import Collective, Plan, Region
from mccl.plans.request import Request
from mccl.plans.symbolic import UNWRITTEN, Memory, Nodes, Run, merged


def check(plans: Sequence[Plan], requests: Request | Sequence[Request]) -> None:
    """Prove that ``plans`` (of ranks 0, 1, …) carry out what ``requests`` ask for.

    ``requests``: what the ranks asked for; one where they all asked for the same.
    Raises PlanError naming the offending steps.
    """
    world = len(plans)
    asked = [requests] * world if isinstance(requests, Request) else list(requests)
    _check_set(plans, asked)
    contracts = [contract(plans[0].collective, world, r, asked) for r in range(world)]
    fifos = []
    for plan, terms in zip(plans, contracts, strict=True):
        _check_buffers(plan, terms)
        check_structure(plan)
        _check_writes(plan, terms)
        fifos.append(fifo_predecessors(plan))
        check_hazards(plan, fifos[-1])
    nodes = Nodes()
    memory = [_initial(plan, terms, nodes) for plan, terms in zip(plans, contracts, strict=True)]
    barrier = plans[0].collective is Collective.BARRIER
    run = Execution(plans, fifos, memory, nodes, values=not barrier)
    run.run()
    if barrier:
        _check_heard(plans, run)
        return
    for plan, terms in zip(plans, contracts, strict=True):
        for owed in terms.owed:
            _check_owed(plan, owed, memory[plan.rank], nodes)
    if plans[0].collective is Collective.ALL_REDUCE:
        _check_same(plans, memory)


def _check_set(plans: Sequence[Plan], requests: Sequence[Request]) -> None:
    if not plans:
        raise PlanError("expected one plan a rank, got none")
    if len(requests) != len(plans):
        raise PlanError(f"expected {len(plans)} requests, one a plan, got {len(requests)}")
    first = plans[0]
    for rank, plan in enumerate(plans):
        if plan.rank != rank or plan.world != len(plans):
            raise PlanError(f"plan {rank} of {len(plans)} is for rank {plan.rank} of {plan.world}")
        if (plan.collective, plan.algorithm, plan.root) != (
            first.collective,
            first.algorithm,
            first.root,
        ):
            raise PlanError(
                f"rank {rank} has {plan.collective.name} by {plan.algorithm}, root {plan.root}; "
                f"rank 0 has {first.collective.name} by {first.algorithm}, root {first.root}"
            )


def _check_buffers(plan: Plan, terms: Contract) -> None:
    if plan.external != terms.external:
        raise PlanError(
            f"rank {plan.rank}: external buffers must have {terms.external} elements, "
            f"the plan has {plan.external}"
        )


def _check_writes(plan: Plan, terms: Contract) -> None:
    for number, step in enumerate(plan.steps):
        if step.dst is None or step.dst.buffer >= plan.scratch_base or not step.count:
            continue
        if step.dst.buffer not in terms.writable:
            raise PlanError(
                f"writes buffer {step.dst.buffer}, an input\n  {show_step(plan, number)}"
            )


def _initial(plan: Plan, terms: Contract, nodes: Nodes) -> list[Memory]:
    buffers = [
        Memory(size, nodes.leaf(plan.rank, i) if i in terms.inputs else UNWRITTEN)
        for i, size in enumerate(plan.external)
    ]
    return buffers + [Memory(scratch.count, UNWRITTEN) for scratch in plan.scratch]


def _check_owed(plan: Plan, owed: Owed, memory: list[Memory], nodes: Nodes) -> None:
    region = owed.region
    at = 0
    for count, node, shift in memory[region.buffer].read(region.offset, region.count):
        fault = _fault(plan, owed, nodes, node, shift, owed.offset + at)
        if fault:
            place = Region(region.buffer, region.offset + at, count)
            raise PlanError(
                f"rank {plan.rank}, buffer {place.buffer} "
                f"[{place.offset}:{place.offset + count}): {fault}; written by\n"
                f"{writers(plan, place)}"
            )
        at += count


def _fault(plan: Plan, owed: Owed, nodes: Nodes, node: int, shift: int, expected: int) -> str:
    """What is wrong with one run of result elements, or nothing."""
    if node == UNWRITTEN:
        return "the result is never written"
    if owed.source is not None:
        if node == nodes.leaf(owed.source, owed.buffer) and shift == expected:
            return ""
        return (
            f"expected rank {owed.source}'s buffer {owed.buffer} from element {expected}, got "
            f"something of rank(s) {bits(nodes.ranks[node])}"
            f" (buffer {nodes.buffer[node]}, from element {shift})"
        )
    missing = bits(((1 << plan.world) - 1) & ~nodes.ranks[node])
    if missing:
        return f"the contribution of rank(s) {missing} is missing"
    if nodes.buffer[node] != owed.buffer or not nodes.aligned[node] or shift != expected:
        return (
            f"adds up the wrong elements: expected buffer {owed.buffer} from element {expected} "
            f"of every rank"
        )
    if not nodes.final[node]:
        return "no step marks the result as final"
    return ""


def _check_same(plans: Sequence[Plan], memory: list[list[Memory]]) -> None:
    count = plans[0].external[0]

    def result(rank: int) -> list[Run]:
        return merged(memory[rank][0].read(0, count))

    first = result(0)
    for plan in plans[1:]:
        if result(plan.rank) != first:
            whole = Region(0, 0, count)
            raise PlanError(
                f"rank {plan.rank} combines the contributions in another order than rank 0, so "
                f"their bits may differ; written by\n{writers(plans[0], whole)}\n"
                f"{writers(plan, whole)}"
            )


def _check_heard(plans: Sequence[Plan], run: Execution) -> None:
    for plan in plans:
        base = run.base[plan.rank]
        known = 1 << plan.rank
        for number in range(base, base + len(plan.steps)):
            known |= run.heard[number]
        missing = bits(((1 << plan.world) - 1) & ~known)
        if missing:
            steps = "\n".join("  " + show_step(plan, i) for i in range(len(plan.steps)))
            raise PlanError(
                f"rank {plan.rank} leaves the barrier without having heard of rank(s) {missing}"
                f"\n{steps}"
            )
