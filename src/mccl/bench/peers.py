"""``mccl bench peers``: every TCP all-reduce that is installed here, on the same work in one run.

Torch backends share processes with the one measured, in turns; the others run in processes of
their own, started anew each round. A peer that is not installed is reported as not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path

from mccl.bench.external import MLX_RING, OPENMPI_SHM, OPENMPI_TCP, ExternalPeer
from mccl.bench.launch import Launcher, LocalLauncher, RankFailedError
from mccl.bench.record import Record, default_path
from mccl.bench.single import effort_of, rotated, worlds_of
from mccl.bench.sweep import TCP, Cell, bus_bandwidth, measure_round
from mccl.bench.table import GB, render
from mccl.bench.units import format_seconds, format_size, parse_sizes
from mccl.errors import UsageError

EXTERNAL: tuple[ExternalPeer, ...] = (OPENMPI_TCP, OPENMPI_SHM, MLX_RING)

_PEER_LIMIT_S = 300.0

# Known to carry an all-reduce over TCP, but not driven from here; the reason is printed.
NOT_DRIVEN = {
    "torchft": "the same Gloo engine as gloo, through a manager process",
    "pccl": "needs Python 3.12 and a CUDA driver library",
    "horovod": "its Gloo controller; does not build against current torch without patches",
    "torchcomms": "the package index has an empty placeholder only",
}


def survey() -> dict[str, str]:
    """Every peer by name, with ``"runs"``, what is missing, or why it is left out."""
    found = {"gloo": "runs"}
    for peer in EXTERNAL:
        found[peer.name] = peer.missing() or "runs"
    for name, reason in NOT_DRIVEN.items():
        installed = importlib.util.find_spec(name) is not None
        found[name] = f"{'installed, but not driven' if installed else 'not installed'} ({reason})"
    return found


def run(args: argparse.Namespace, launcher: Launcher) -> int:
    """Measure, save, print; 1 when a result was wrong."""
    if not isinstance(launcher, LocalLauncher):
        raise UsageError("mccl bench peers runs on this machine only: peers have own launchers")
    state = survey()
    record = Record("peers", {"title": launcher.title, "leader": args.backend, "peers": state})
    cells = [Cell("all_reduce", nbytes) for nbytes in parse_sizes(args.sizes)]
    series = list(dict.fromkeys([args.backend, "gloo", TCP]))
    runnable = [peer for peer in EXTERNAL if state[peer.name] == "runs"]
    limit = min(args.timeout, _PEER_LIMIT_S)
    for world in worlds_of(args, launcher):
        broken: set[str] = set()
        for turn in range(args.rounds):
            print(f"{world} ranks, round {turn + 1} of {args.rounds}", flush=True)
            cases = measure_round(
                launcher, cells, rotated(series, turn), world, effort_of(args), timeout=args.timeout
            )
            record.add_rounds(cases or [])
            for peer in runnable:
                if peer.name in broken:
                    continue
                try:
                    record.add_rounds(peer.round(cells, world, effort_of(args), limit))
                except RankFailedError as error:
                    broken.add(peer.name)
                    record.notes.append(f"{peer.name}, {world} ranks: {error}")
    path = record.save(default_path(record, Path(args.out)))
    print_record(record)
    print(f"\nraw: {path}")
    return 1 if any(case.facts.get("wrong") for case in record.find(args.backend)) else 0


def print_record(record: Record) -> None:
    """One table a world size: peers down, sizes across."""
    leader = record.settings["leader"]
    print(f"\n{record.machine.sentence()}\n{record.settings['title']}; {record.command}")
    print(
        f"all_reduce, float32: median time, bus bandwidth GB/s, time over {leader}'s (above 1: "
        f"{leader} is faster)"
    )
    for world in record.labels("ranks"):
        cases = record.find(ranks=world)
        sizes = list(dict.fromkeys(case.labels["nbytes"] for case in cases))
        rows = []
        for series in dict.fromkeys(case.series for case in cases):
            row = [series]
            for nbytes in sizes:
                case = record.one(series, ranks=world, nbytes=nbytes)
                own = record.one(leader, ranks=world, nbytes=nbytes)
                if case is None or own is None:
                    row.append("-")
                    continue
                row.append(
                    f"{format_seconds(case.median)}  {bus_bandwidth(case) / GB:.2f}  "
                    f"x{case.median / own.median:.2f}"
                )
            rows.append(row)
        header = [f"{world} ranks", *(format_size(n) for n in sizes if isinstance(n, int))]
        print(f"\n{render(header, rows)}")
    print()
    for name, state in record.settings["peers"].items():
        print(f"{name}: {state}")
    for note in record.notes:
        print(f"note: {note}")
