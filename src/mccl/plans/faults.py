"""What a proof says when it fails."""

from __future__ import annotations

from mccl.plans.plan import Plan, Region, StepKind


class PlanError(ValueError):
    """A plan breaks a rule. The message names the offending steps: rank, step number,
    kind, peer and regions."""


def show_region(plan: Plan, region: Region) -> str:
    """``buffer 1 [3:7)``, saying so when the buffer is scratch."""
    scratch = region.buffer - plan.scratch_base
    name = f"scratch {scratch}" if scratch >= 0 else f"buffer {region.buffer}"
    return f"{name} [{region.offset}:{region.offset + region.count})"


def show_step(plan: Plan, number: int) -> str:
    """One step for a reader, e.g. ``rank 2 step 5: SEND to 3 of buffer 0 [4:8)``."""
    step = plan.steps[number]
    src = "nothing" if step.src is None else show_region(plan, step.src)
    dst = "nothing" if step.dst is None else show_region(plan, step.dst)
    match step.kind:
        case StepKind.SEND:
            what = f"to {step.peer} of {src}"
        case StepKind.RECV:
            what = f"from {step.peer} into {dst}"
        case StepKind.RECV_REDUCE:
            what = f"from {step.peer} with {src} into {dst}"
        case _:
            what = f"of {src} into {dst}"
    waits = ", ".join(f"{d.kind.name} {d.step}" for d in step.deps)
    after = f" (after {waits})" if waits else ""
    return f"rank {plan.rank} step {number}: {step.kind.name} {what}{after}"


def writers(plan: Plan, region: Region) -> str:
    """The steps of ``plan`` that write any element of ``region``, one a line."""
    end = region.offset + region.count
    lines = [
        "  " + show_step(plan, i)
        for i, step in enumerate(plan.steps)
        if step.dst is not None
        and step.dst.buffer == region.buffer
        and step.dst.offset < end
        and region.offset < step.dst.offset + step.dst.count
    ]
    return "\n".join(lines) if lines else f"  (no step of rank {plan.rank} writes there)"
