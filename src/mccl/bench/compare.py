"""``mccl bench compare``: this backend, Gloo, OpenMPI and plain TCP on the same work in one run.

Rounds are interleaved and each starts fresh processes; within a round the order of contestants
turns. Reported are medians with the spread over rounds, ratios, CPU per gigabyte, and what Python
costs over the bare engine at 1 KiB.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mccl.bench import bare
from mccl.bench.external import OPENMPI_TCP
from mccl.bench.launch import Launcher, LocalLauncher, RankFailedError
from mccl.bench.record import Case, Record, default_path
from mccl.bench.single import effort_of, rotated, worlds_of
from mccl.bench.sweep import TCP, Cell, measure_round
from mccl.bench.table import GB, render, side_by_side
from mccl.bench.units import format_seconds, parse_sizes

OTHERS_AT = 25 << 20
OTHERS = ("broadcast", "all_gather", "reduce_scatter")
CPU_AT = (1 << 20, 25 << 20, 256 << 20)


def run(args: argparse.Namespace, launcher: Launcher) -> int:
    """Measure, save, print; the exit code is 1 when any result was wrong."""
    cells = [Cell("all_reduce", nbytes) for nbytes in parse_sizes(args.sizes)]
    cells += [Cell(name, OTHERS_AT, in_place=name == "broadcast") for name in OTHERS]
    series = [args.backend, *(["gloo"] if args.peer is None else args.peer), TCP]
    record = Record(
        "compare",
        launcher.facts | {"title": launcher.title, "series": series, "leader": args.backend},
    )
    use_mpi = not args.no_openmpi and isinstance(launcher, LocalLauncher)
    missing = OPENMPI_TCP.missing() if use_mpi else "left out"
    if missing is not None:
        record.notes.append(f"openmpi-tcp: {missing}")
    for world in worlds_of(args, launcher):
        for turn in range(args.rounds):
            print(f"{world} ranks, round {turn + 1} of {args.rounds}", flush=True)
            cases = measure_round(
                launcher, cells, rotated(series, turn), world, effort_of(args), timeout=args.timeout
            )
            if cases is None:
                continue
            record.add_rounds(cases)
            if missing is None:
                record.add_rounds(_mpi_round(record, cells, world, args))
            if args.backend == bare.BACKEND:
                record.add_rounds(bare.measure_round(launcher, world, args.timeout) or [])
    if not record.cases:
        return 0
    path = record.save(default_path(record, Path(args.out)))
    print_record(record)
    print(f"\nraw: {path}")
    return 1 if any(case.facts.get("wrong") for case in record.cases) else 0


def _mpi_round(
    record: Record, cells: list[Cell], world: int, args: argparse.Namespace
) -> list[Case]:
    """A round of OpenMPI; a failure becomes a note, since it says nothing about us."""
    try:
        return OPENMPI_TCP.round(cells, world, effort_of(args), args.timeout)
    except RankFailedError as error:
        record.notes.append(f"openmpi-tcp, {world} ranks: {error}")
        return []


def print_record(record: Record) -> None:
    """Tables of a compare record."""
    leader = str(record.settings["leader"])
    print(f"\n{record.machine.sentence()}\n{record.settings['title']}; {record.command}")
    print("median time [smallest..largest round median], bus bandwidth; ratios: above 1 is faster")
    for world in record.labels("ranks"):
        for collective in ("all_reduce", *OTHERS):
            if record.find(ranks=world, collective=collective):
                print(f"\n{collective}, {world} ranks")
                print(side_by_side(record, world, collective, leader))
        print(f"\nCPU, {world} ranks: core-seconds per GB sent\n{cpu_table(record, world)}")
        overhead = bare.overhead_seconds(record, world)
        if overhead is not None:
            engine = format_seconds(bare.engine_seconds(record, world))
            print(
                f"\n1 KiB, {world} ranks: the bare engine takes {engine}, "
                f"torch.distributed over it {format_seconds(overhead)} more"
            )
    for note in record.notes:
        print(f"note: {note}")


def cpu_table(record: Record, world: int) -> str:
    """Core-seconds per gigabyte sent, by contestant and size."""
    rows = []
    sizes = [n for n in CPU_AT if record.find(ranks=world, collective="all_reduce", nbytes=n)]
    cases = record.find(ranks=world, collective="all_reduce")
    for series in dict.fromkeys(case.series for case in cases):
        row = [series]
        for nbytes in sizes:
            case = record.one(series, ranks=world, collective="all_reduce", nbytes=nbytes)
            row.append("-" if case is None else f"{cpu_per_gb(case):.3f}")
        rows.append(row)
    return render(["", *[f"{n >> 20} MiB" for n in sizes]], rows)


def cpu_per_gb(case: Case) -> float:
    """User and system seconds of all ranks over the gigabytes that all ranks sent."""
    moved = case.facts["wire_bytes"]
    return case.facts["cpu_s"] / (moved / GB) if moved else float("nan")
