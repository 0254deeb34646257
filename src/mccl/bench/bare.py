"""What Python costs: ``dist.all_reduce`` at 1 KiB against the same plan on the bare engine.

Both loops run in the same processes, in turns, over the same connections. The bare loop is one
ctypes call an operation and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from mccl.bench.launch import Launcher, RankContext
from mccl.bench.record import Case, Label, Record

BACKEND = "mccl"
NBYTES = 1024
FULL, BARE = "mccl", "mccl-engine"
_COLLECTIVE = "python_overhead"
_TURNS, _CALLS, _TIMEOUT_US = 5, 200, 60_000_000


def worker(context: RankContext, options: dict[str, Any]) -> dict[str, list[float]]:
    """Samples in seconds of both loops, on each rank."""
    group = context.group(BACKEND)
    tensor = torch.zeros(NBYTES // 4)
    dist.all_reduce(tensor, group=group)  # connects
    bare = _bare_call(group, tensor)
    loops: dict[str, Callable[[], object]] = {
        FULL: lambda: dist.all_reduce(tensor, group=group),
        BARE: bare,
    }
    samples: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(_TURNS):
        for name, call in loops.items():
            context.gather("ready")
            for _ in range(20):
                call()
            samples[name] += _timed(call)
    return samples


def _timed(call: Callable[[], object]) -> list[float]:
    samples = []
    for _ in range(_CALLS):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return samples


def _bare_call(group: dist.ProcessGroup, tensor: torch.Tensor) -> Callable[[], object]:
    """An all-reduce of ``tensor`` on the engine, prepared as the process group prepares it."""
    from mccl import engine, plans

    collective = plans.Collective.ALL_REDUCE
    world, rank, count = group.size(), group.rank(), tensor.numel()
    algorithm = plans.choose(collective, count, tensor.itemsize, world)
    plan = plans.build(collective, algorithm, world, rank, plans.Request(sizes=count))
    f32 = engine.DType.F32
    call = engine.Call(engine.NativePlan(plan), collective, f32, engine.RedOp.SUM, f32, -1, count)
    native = _communicator(group).native
    pointers = [tensor.data_ptr()] * len(plan.external)
    return lambda: native.submit(call, pointers, sync=True, timeout_us=_TIMEOUT_US)


def _communicator(group: Any) -> Any:
    """The communicator behind a process group of this package."""
    return group._communicator


def measure_round(launcher: Launcher, world: int, timeout: float) -> list[Case] | None:
    """One round of both loops, samples averaged over the ranks; None where nothing is reported."""
    ranks = launcher.run(worker, {}, world, timeout)
    if ranks is None:
        return None
    labels: dict[str, Label] = {
        "collective": _COLLECTIVE,
        "ranks": world,
        "nbytes": NBYTES,
        "factor": 1.0,
    }
    return [
        Case(
            name,
            dict(labels),
            [[sum(v) / world for v in zip(*(r[name] for r in ranks), strict=True)]],
        )
        for name in (FULL, BARE)
    ]


def overhead_seconds(record: Record, world: int) -> float | None:
    """Difference of the medians of both loops, None where they were not measured."""
    full = record.one(FULL, ranks=world, collective=_COLLECTIVE)
    bare = record.one(BARE, ranks=world, collective=_COLLECTIVE)
    return None if full is None or bare is None else full.median - bare.median


def engine_seconds(record: Record, world: int) -> float:
    """Median of the bare loop, nan where it was not measured."""
    bare = record.one(BARE, ranks=world, collective=_COLLECTIVE)
    return float("nan") if bare is None else bare.median
