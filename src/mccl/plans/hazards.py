"""One rank's plan on its own: is it well formed, and is every conflict ordered?

Two accesses conflict when they touch a common element of one buffer and at least one of
them writes. The engine runs steps as soon as their dependencies allow, so each conflict
needs a dependency path from the earlier step of the list to the later one. Two sorts of
path exist and must not be mixed up:

* one with at least one FULL dependency or FIFO step orders *all* of one step before
  *all* of the other;
* one of STREAM dependencies alone orders element x of the one before element x of the
  other, which settles a conflict only if both regions begin at the same element.

Which steps can be reached by either sort of path is kept as a bit set in an integer.
"""

from __future__ import annotations

from typing import NamedTuple

from mccl.plans.faults import PlanError, show_step
from mccl.plans.plan import DepKind, Plan, Region, StepKind

_RECEIVES = (StepKind.RECV, StepKind.RECV_REDUCE)
_LOCAL = (StepKind.COPY, StepKind.REDUCE)
_SHAPE = {
    StepKind.SEND: (False, True),
    StepKind.RECV: (True, False),
    StepKind.RECV_REDUCE: (True, True),
    StepKind.COPY: (True, True),
    StepKind.REDUCE: (True, True),
}
"""Kind -> (has dst, has src)."""


class _Access(NamedTuple):
    start: int
    end: int
    step: int
    writes: bool


def check_structure(plan: Plan) -> None:
    """Raise PlanError unless every step is well formed: regions in bounds and of equal
    counts, peers other ranks, dependencies on earlier steps, STREAM between equal counts,
    narrow data on the wire."""
    sizes = (*plan.external, *(s.count for s in plan.scratch))
    wide = {plan.scratch_base + i for i, s in enumerate(plan.scratch) if s.accumulate}
    for number, step in enumerate(plan.steps):

        def fault(what: str, number: int = number) -> PlanError:
            return PlanError(f"{what}\n  {show_step(plan, number)}")

        if ((step.dst is not None), (step.src is not None)) != _SHAPE[step.kind]:
            raise fault(f"{step.kind.name} must name (dst, src) = {_SHAPE[step.kind]}")
        if step.kind in _LOCAL:
            if step.peer != -1:
                raise fault("a local step must have peer -1")
        elif not 0 <= step.peer < plan.world or step.peer == plan.rank:
            raise fault(f"peer must be another rank of a world of {plan.world}")
        for region in (step.dst, step.src):
            if region is not None:
                _check_region(region, step.count, sizes, fault)
        for dep in step.deps:
            if not 0 <= dep.step < number:
                raise fault(f"step {number} depends on step {dep.step}, which is not earlier")
            if dep.kind is DepKind.STREAM and plan.steps[dep.step].count != step.count:
                raise PlanError(
                    "a STREAM dependency needs equal counts, these are "
                    f"{plan.steps[dep.step].count} and {step.count}\n"
                    f"  {show_step(plan, dep.step)}\n  {show_step(plan, number)}"
                )
        outgoing = step.src if step.kind is StepKind.SEND else None
        incoming = step.dst if step.kind is StepKind.RECV else None
        for region in (outgoing, incoming):
            if region is not None and region.buffer in wide:
                raise fault("an accumulator must not be sent or received into as it is")


def _check_region(region: Region, count: int, sizes: tuple[int, ...], fault: object) -> None:
    assert callable(fault)
    if not 0 <= region.buffer < len(sizes):
        raise fault(f"buffer {region.buffer} does not exist; there are {len(sizes)}")
    if region.count != count:
        raise fault(f"regions of one step must have equal counts, got {region.count} and {count}")
    if region.offset < 0 or region.count < 0 or region.offset + region.count > sizes[region.buffer]:
        raise fault(
            f"region [{region.offset}:{region.offset + region.count}) is out of bounds of "
            f"buffer {region.buffer}, which has {sizes[region.buffer]} elements"
        )


def fifo_predecessors(plan: Plan) -> list[int]:
    """For each step the step before it on its connection, or -1."""
    before = [-1] * len(plan.steps)
    last_sent: dict[int, int] = {}
    last_received: dict[int, int] = {}
    for number, step in enumerate(plan.steps):
        if step.kind in _LOCAL:
            continue
        last = last_sent if step.kind is StepKind.SEND else last_received
        before[number] = last.get(step.peer, -1)
        last[step.peer] = number
    return before


def _orders(plan: Plan, fifo: list[int]) -> tuple[list[int], list[int]]:
    """Bit sets a step: those wholly before it, and those before it element by element."""
    whole: list[int] = []
    streamed: list[int] = []
    for number, step in enumerate(plan.steps):
        full = stream = 0
        if (d := fifo[number]) >= 0:
            full = whole[d] | streamed[d] | 1 << d
        for dep in step.deps:
            d = dep.step
            if dep.kind is DepKind.FULL:
                full |= whole[d] | streamed[d] | 1 << d
            elif step.count:  # a step without elements has none to wait for
                full |= whole[d]
                stream |= streamed[d] | 1 << d
        whole.append(full)
        streamed.append(stream)
    return whole, streamed


def _accesses(plan: Plan) -> dict[int, list[_Access]]:
    """Buffer -> accesses by first element. A step on one region twice is one access."""
    found: dict[int, list[_Access]] = {}
    for number, step in enumerate(plan.steps):
        if step.count == 0:
            continue
        dst, src = step.dst, step.src
        if dst is not None:
            entry = _Access(dst.offset, dst.offset + dst.count, number, True)
            found.setdefault(dst.buffer, []).append(entry)
        if src is not None and src != dst:
            entry = _Access(src.offset, src.offset + src.count, number, False)
            found.setdefault(src.buffer, []).append(entry)
    for accesses in found.values():
        accesses.sort()
    return found


def check_hazards(plan: Plan, fifo: list[int]) -> None:
    """Raise PlanError when two conflicting accesses have no dependency path between them."""
    whole, streamed = _orders(plan, fifo)
    for buffer, accesses in _accesses(plan).items():
        reads: list[_Access] = []
        writes: list[_Access] = []
        start = -1
        for access in accesses:
            if access.start != start:
                start = access.start
                reads = [a for a in reads if a.end > start]
                writes = [a for a in writes if a.end > start]
            for other in (*reads, *writes) if access.writes else writes:
                first, second = other.step, access.step
                if first > second:
                    first, second = second, first
                if whole[second] >> first & 1:
                    continue
                if first != second and other.start == start and streamed[second] >> first & 1:
                    continue
                low, high = start, min(access.end, other.end)
                raise PlanError(
                    f"unordered conflict on elements [{low}:{high}) of buffer {buffer}: no "
                    f"dependency path orders these two steps\n"
                    f"  {show_step(plan, first)}\n  {show_step(plan, second)}"
                )
            (writes if access.writes else reads).append(access)
