"""``mccl bench overlap``: how much communication hides behind compute (paper §5.1, figure 3 right).

A synthetic step produces K buckets of S bytes and is timed four ways: compute alone, communication
alone (all buckets asynchronously, back to back), overlapped (each bucket's all-reduce is issued the
moment the bucket is produced, as DDP does) and serialized (each bucket waits for its all-reduce).

    hidden share = 1 - (overlapped - compute) / communication
    step overhead = (overlapped - compute) / compute

With K equal buckets at equal intervals the last one appears when compute ends, so at most
``1 - 1/K`` can hide: 94.4% for eighteen, which is the paper's 94%. The tapered schedule halves the
last bucket again and again, so that less is left for the end.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mccl.bench.accelerators import Accelerator, accelerator
from mccl.bench.launch import Launcher, RankContext
from mccl.bench.record import Case, Label, Record, default_path
from mccl.bench.single import worlds_of
from mccl.bench.table import render
from mccl.bench.units import format_seconds, format_size, parse_size

WAYS = ("compute", "communication", "overlapped", "serialized")
_TAPER = 4
_WARM_STEPS = 1


@dataclass(frozen=True)
class Schedule:
    """Sizes of the buckets in bytes, in the order of production; work is in proportion."""

    sizes: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes of a step."""
        return sum(self.sizes)

    @property
    def share(self) -> list[float]:
        """Share of the compute that produces each bucket."""
        return [size / self.total for size in self.sizes]

    @property
    def bound(self) -> float:
        """Largest share of communication that can hide: all but the last bucket's."""
        return 1 - self.sizes[-1] / self.total


def schedule(kind: str, buckets: int, size: int) -> Schedule:
    """``even``: ``buckets`` of ``size`` bytes. ``tapered``: the last halved ``_TAPER`` times."""
    if kind == "even":
        return Schedule((size,) * buckets)
    tail, left = [], size
    for _ in range(_TAPER):
        tail.append(left // 2 // 4 * 4)
        left -= tail[-1]
    return Schedule((size,) * (buckets - 1) + (*tail, left))


def worker(context: RankContext, options: dict[str, Any]) -> dict[str, Any]:
    """Times the four ways on each rank for every backend; returns samples in seconds."""
    torch.set_num_threads(1)
    device = accelerator(options["device"])
    plan = Schedule(tuple(options["sizes"]))
    buckets = [torch.zeros(size // 4, device=device.device) for size in plan.sizes]
    results: dict[str, Any] = {}
    compute_s = options["compute_s"]
    for backend in options["backends"]:
        group = context.group(backend)
        context.gather("ready")
        _communicate(buckets, group, device)
        alone = []
        for _ in range(max(2, options["steps"] // 2)):
            context.gather("ready")
            alone.append(_clock(lambda: _communicate(buckets, group, device), device))  # noqa: B023
        if compute_s is None:
            compute_s = context.share(sorted(alone)[len(alone) // 2]) / options["ratio"]
        device.calibrate(compute_s)
        ways = {
            "compute": lambda: _compute(plan, device),
            "communication": lambda: _communicate(buckets, group, device),  # noqa: B023
            "overlapped": lambda: _overlap(plan, buckets, group, device),  # noqa: B023
            "serialized": lambda: _serialize(plan, buckets, group, device),  # noqa: B023
        }
        samples: dict[str, list[float]] = {way: [] for way in WAYS}
        for step in range(options["steps"] + _WARM_STEPS):
            for way, call in ways.items():
                context.gather("ready")
                taken = _clock(call, device)
                if step >= _WARM_STEPS:
                    samples[way].append(taken)
        results[backend] = samples
    return results


def _clock(call: Any, device: Accelerator) -> float:
    start = time.perf_counter()
    call()
    device.settle()
    return time.perf_counter() - start


def _compute(plan: Schedule, device: Accelerator) -> None:
    device.begin()
    for number, share in enumerate(plan.share):
        device.produce(number, share)


def _communicate(
    buckets: list[torch.Tensor], group: dist.ProcessGroup, device: Accelerator
) -> None:
    works = [dist.all_reduce(bucket, group=group, async_op=True) for bucket in buckets]
    for work in works:
        work.wait()


def _overlap(
    plan: Schedule, buckets: list[torch.Tensor], group: dist.ProcessGroup, device: Accelerator
) -> None:
    device.begin()
    works = []
    for number, (share, bucket) in enumerate(zip(plan.share, buckets, strict=True)):
        device.produce(number, share)
        works.append(dist.all_reduce(bucket, group=group, async_op=True))
    for work in works:
        work.wait()


def _serialize(
    plan: Schedule, buckets: list[torch.Tensor], group: dist.ProcessGroup, device: Accelerator
) -> None:
    for number, (share, bucket) in enumerate(zip(plan.share, buckets, strict=True)):
        device.begin()
        device.produce(number, share)
        device.settle()
        dist.all_reduce(bucket, group=group)
        device.settle()


def hidden_share(record: Record, series: str, **labels: Label) -> float:
    """Share of the communication of ``series`` that the overlapped step hid (1 is all)."""
    times = _medians(record, series, **labels)
    return 1 - (times["overlapped"] - times["compute"]) / times["communication"]


def step_overhead(record: Record, series: str, **labels: Label) -> float:
    """What communication added to the step, as a share of compute."""
    times = _medians(record, series, **labels)
    return (times["overlapped"] - times["compute"]) / times["compute"]


def _medians(record: Record, series: str, **labels: Label) -> dict[str, float]:
    cases = {way: record.one(series, way=way, **labels) for way in WAYS}
    return {way: float("nan") if case is None else case.median for way, case in cases.items()}


def run(args: argparse.Namespace, launcher: Launcher) -> int:
    """Measure, save, print; the exit code is 1 when less is hidden than ``--min-hidden`` asks."""
    plan = schedule(args.schedule, args.buckets, parse_size(args.bucket_size))
    backends = [args.backend, *args.peer]
    record = Record(
        "overlap",
        launcher.facts
        | {
            "title": launcher.title,
            "series": backends,
            "device": args.device,
            "schedule": args.schedule,
            "sizes": list(plan.sizes),
            "bound": plan.bound,
        },
    )
    options = {
        "device": args.device,
        "sizes": list(plan.sizes),
        "backends": backends,
        "compute_s": args.compute,
        "ratio": args.ratio,
        "steps": args.steps,
    }
    for world in worlds_of(args, launcher):
        ranks = launcher.run(worker, options, world, args.timeout)
        if ranks is not None:
            record.cases += _cases(ranks, backends, world, args.schedule)
    if not record.cases:
        return 0
    path = record.save(default_path(record, Path(args.out)))
    print_record(record)
    print(f"\nraw: {path}")
    failed = False
    for world in record.labels("ranks"):
        share = 100 * hidden_share(record, args.backend, ranks=world)
        if args.min_hidden is not None and share < args.min_hidden:
            failed = True
            print(f"FAILED {world} ranks: {share:.1f}% hidden, {args.min_hidden}% asked for")
    return 1 if failed else 0


def _cases(ranks: list[Any], backends: list[str], world: int, kind: str) -> list[Case]:
    """A step takes as long as its slowest rank."""
    return [
        Case(
            backend,
            {"way": way, "ranks": world, "schedule": kind},
            [[max(v) for v in zip(*(rank[backend][way] for rank in ranks), strict=True)]],
        )
        for backend in backends
        for way in WAYS
    ]


def print_record(record: Record) -> None:
    """The table of an overlap record."""
    settings = record.settings
    print(f"\n{record.machine.sentence()}\n{settings['title']}; {record.command}")
    sizes = settings["sizes"]
    print(
        f"{len(sizes)} buckets, {format_size(sum(sizes))} in all, {settings['schedule']}; device "
        f"{settings['device']}; at most {100 * settings['bound']:.1f}% can hide\n"
    )
    rows = []
    for world in record.labels("ranks"):
        for series in settings["series"]:
            times = _medians(record, series, ranks=world)
            overlapped = record.one(series, way="overlapped", ranks=world)
            low, high = overlapped.spread if overlapped else (float("nan"),) * 2
            rows.append(
                [
                    f"{series}, {world} ranks",
                    *(format_seconds(times[way]) for way in WAYS),
                    f"{format_seconds(low)}..{format_seconds(high)}",
                    f"{100 * hidden_share(record, series, ranks=world):.1f}%",
                    f"{100 * step_overhead(record, series, ranks=world):.1f}%",
                ]
            )
    print(render(["", *WAYS, "overlapped spread", "hidden", "overhead"], rows))
