"""``mccl bench all_reduce`` and its siblings: one collective by size, with pass/fail gates."""

from __future__ import annotations

import argparse
from pathlib import Path

from mccl.bench import collectives, exact
from mccl.bench.launch import Launcher
from mccl.bench.record import Record, default_path
from mccl.bench.sweep import TCP, Cell, Effort, bus_bandwidth, measure_round
from mccl.bench.table import GB, nccl_tests, side_by_side
from mccl.bench.units import format_size, parse_ints, parse_sizes
from mccl.errors import UsageError

_GOODPUT_FROM = 1 << 20


def effort_of(args: argparse.Namespace) -> Effort:
    """The measuring effort that the arguments ask for."""
    return Effort(
        budget_s=args.budget,
        min_iterations=args.min_iterations,
        max_iterations=max(args.max_iterations, args.min_iterations),
        check=not args.no_check,
    )


def worlds_of(args: argparse.Namespace, launcher: Launcher) -> list[int]:
    """World sizes to run: the launcher's own where it has some, else ``--ranks``."""
    return list(launcher.worlds) if launcher.worlds is not None else parse_ints(args.ranks)


def rotated(series: list[str], turn: int) -> list[str]:
    """``series`` starting one further each round, so that no contestant is always first."""
    shift = turn % len(series)
    return series[shift:] + series[:shift]


def run(args: argparse.Namespace, launcher: Launcher) -> int:
    """Measure, save the record, print tables, apply the gates; the exit code is 1 if one fails."""
    bench = collectives.find(args.collective)
    if args.dtype not in exact.DTYPES:
        raise UsageError(f"dtype {args.dtype!r} unknown: choose from {', '.join(exact.DTYPES)}")
    cells = [
        Cell(bench.name, nbytes, args.dtype, args.redop, in_place)
        for nbytes in parse_sizes(args.sizes)
        for in_place in bench.in_place
    ]
    series = [args.backend, *args.peer]
    if bench.name == "all_reduce" and not args.no_tcp:
        series.append(TCP)
    record = Record(bench.name, launcher.facts | {"title": launcher.title, "series": series})
    for world in worlds_of(args, launcher):
        for turn in range(args.rounds):
            cases = measure_round(
                launcher,
                cells,
                rotated(series, turn),
                world,
                effort_of(args),
                args.device,
                args.timeout,
            )
            if cases is None:
                return 0
            record.add_rounds(cases)
    path = record.save(default_path(record, Path(args.out)))
    print(f"# {record.machine.sentence()}\n# {launcher.title}; {record.command}\n# raw: {path}")
    for world in record.labels("ranks"):
        print(f"\n{bench.name}, {args.backend}, {world} ranks, medians of {args.rounds} rounds\n")
        print(nccl_tests(record, args.backend, world, bench.name))
        if len(series) > 1:
            print()
            print(side_by_side(record, world, bench.name, args.backend))
    return _gates(args, record)


def _gates(args: argparse.Namespace, record: Record) -> int:
    failures = []
    for case in record.cases:
        if case.facts.get("wrong"):
            failures.append(
                f"{case.series}, {case.labels['ranks']} ranks, {case.labels['nbytes']} bytes: "
                f"{case.facts['wrong']:.0f} wrong elements"
            )
    for world in record.labels("ranks"):
        own = record.find(args.backend, ranks=world)
        largest = max(own, key=lambda case: int(case.labels["nbytes"] or 0))
        reached = bus_bandwidth(largest) / GB
        if args.min_busbw is not None and reached < args.min_busbw:
            failures.append(f"{world} ranks: {reached:.3f} GB/s is below {args.min_busbw} GB/s")
        if args.min_goodput is not None:
            failures += _goodput_failures(record, args.backend, world, args.min_goodput)
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else 0


def _goodput_failures(record: Record, backend: str, world: int, percent: float) -> list[str]:
    failures = []
    for ceiling in record.find(TCP, ranks=world):
        nbytes = ceiling.labels["nbytes"]
        own = record.one(backend, ranks=world, nbytes=nbytes, in_place=True)
        if own is None or not isinstance(nbytes, int) or nbytes < _GOODPUT_FROM:
            continue
        share = 100 * ceiling.median / own.median
        if share < percent:
            failures.append(
                f"{world} ranks, {format_size(nbytes)}: {share:.2f}% of goodput, "
                f"{percent}% asked for"
            )
    return failures
