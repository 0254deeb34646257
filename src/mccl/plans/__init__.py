"""Collectives as data: pure functions from sizes and ranks to plans, and their proof.

Nothing here knows sockets, tensors, threads or clocks.
"""

from mccl.plans.choose import ALGORITHMS, GROUPED, build, check_algorithm, choose
from mccl.plans.plan import (
    Collective,
    Dep,
    DepKind,
    Plan,
    PlanBuilder,
    Region,
    Scratch,
    Step,
    StepKind,
)
from mccl.plans.request import Request

__all__ = [
    "ALGORITHMS",
    "GROUPED",
    "Collective",
    "Dep",
    "DepKind",
    "Plan",
    "PlanBuilder",
    "Region",
    "Request",
    "Scratch",
    "Step",
    "StepKind",
    "build",
    "check_algorithm",
    "choose",
]
