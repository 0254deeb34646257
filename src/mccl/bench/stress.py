"""``mccl bench stress``: collectives of random kinds for a set time, every result checked.

Bursts of asynchronous collectives are issued back to back without waiting, then waited for, then
checked bit for bit. What to run comes from a generator that all ranks seed alike. Filling and
checking are not counted: time, CPU and bytes are those between the first issue and the last wait.
Bursts come in rounds of about two seconds; a soak rests between them (``--pause``) and writes down
after each what it has found so far (``--log``).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mccl.bench import collectives, exact
from mccl.bench.collectives import Buffers, CollectiveBench, Shape
from mccl.bench.launch import Launcher, RankContext
from mccl.bench.record import Case, Label, Record, default_path
from mccl.bench.single import worlds_of
from mccl.bench.sweep import cpu_seconds
from mccl.bench.table import GB, render
from mccl.bench.units import parse_sizes

PAPER_CORES, PAPER_GB_S = 0.31, 0.57
_FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
_WHOLE = ("int64", "int32", "int8", "uint8")
_SEEDS = 2
_CHUNK_S = 2.0
_MIN_BURSTS = 2


@dataclass
class Tally:
    """What one rank did."""

    operations: int = 0
    wrong: int = 0
    wrong_in: list[str] = field(default_factory=list)
    wire_bytes: float = 0.0
    busy_s: float = 0.0
    cpu_s: float = 0.0


def draw(
    choice: random.Random, sizes: list[int], context: RankContext
) -> tuple[CollectiveBench, Shape]:
    """The next collective; the same on all ranks that drew alike so far."""
    bench = choice.choice(list(collectives.COLLECTIVES.values()))
    redop = choice.choice(exact.REDOPS) if bench.reduces else "sum"
    names = _FLOATS if redop == "avg" else _FLOATS + _WHOLE
    dtype = exact.DTYPES[choice.choice(names)]
    nbytes = choice.choice(sizes)
    return bench, Shape(
        context.rank,
        context.world,
        collectives.element_count(bench, nbytes, dtype, context.world),
        dtype,
        redop,
        choice.choice(bench.in_place),
        torch.device("cpu"),
        choice.randrange(_SEEDS),
    )


def worker(context: RankContext, options: dict[str, Any]) -> dict[str, Any]:
    """Runs bursts until the time is up (rank 0's clock decides); see ``run`` for the result."""
    group = context.group(options["backend"])
    choice = random.Random(options["seed"])
    tally = Tally()
    usage = [process_usage()]
    start = time.perf_counter()
    bursts = _MIN_BURSTS
    while True:
        began = time.perf_counter()
        for _ in range(bursts):
            work = [draw(choice, options["sizes"], context) for _ in range(options["burst"])]
            _burst(work, group, tally)
        usage.append(process_usage())
        if options["log"]:
            _append(Path(options["log"]), context, tally, usage[-1])
        now = time.perf_counter()
        better = max(_MIN_BURSTS, int(bursts * _CHUNK_S / max(now - began, 1e-3)))
        done, bursts = context.share([now - start >= options["seconds"], better])
        if done:
            break
        time.sleep(options["pause"])
    return {"tally": vars(tally), "usage": usage, "elapsed_s": time.perf_counter() - start}


def _append(path: Path, context: RankContext, tally: Tally, usage: dict[str, float]) -> None:
    line = {"rank": context.rank, "world": context.world} | vars(tally) | usage
    with path.open("a") as file:  # one write a line: ranks share the file
        file.write(json.dumps(line) + "\n")


def _burst(
    work: list[tuple[CollectiveBench, Shape]], group: torch.distributed.ProcessGroup, tally: Tally
) -> None:
    ready: list[tuple[CollectiveBench, Shape, Buffers]] = []
    for bench, shape in work:
        buffers = bench.allocate(shape)
        bench.fill(buffers, shape)
        ready.append((bench, shape, buffers))
    cpu, start = cpu_seconds(), time.perf_counter()
    pending = [bench.call(buffers, shape, group, True) for bench, shape, buffers in ready]
    for handle in pending:
        if handle is not None:
            handle.wait()
    tally.busy_s += time.perf_counter() - start
    tally.cpu_s += cpu_seconds() - cpu
    for bench, shape, buffers in ready:
        tally.operations += 1
        tally.wire_bytes += shape.count * shape.dtype.itemsize * bench.factor(shape.world)
        wrong = bench.wrong(buffers, shape)
        if wrong:
            tally.wrong += wrong
            tally.wrong_in.append(f"operation {tally.operations}: {bench.name} {shape}")


def process_usage() -> dict[str, float]:
    """Resident bytes, threads and open descriptors of this process."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
        resident = int(statm.read_text().split()[1]) * resource.getpagesize()
        descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - one call, no objects
    else:
        threads = threading.active_count()
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        descriptors = len(os.listdir("/dev/fd"))  # noqa: PTH208
    return {
        "time": time.time(),
        "resident_bytes": resident,
        "threads": threads,
        "descriptors": descriptors,
    }


def run(args: argparse.Namespace, launcher: Launcher) -> int:
    """Stress, save, print; the exit code is 1 when any element was wrong."""
    options = {
        "backend": args.backend,
        "seconds": args.seconds,
        "sizes": parse_sizes(args.sizes),
        "burst": args.burst,
        "seed": args.seed,
        "pause": args.pause,
        "log": args.log and str(Path(args.log).absolute()),
    }
    record = Record("stress", launcher.facts | {"title": launcher.title} | options)
    for world in worlds_of(args, launcher):
        ranks = launcher.run(worker, options, world, args.seconds + args.timeout)
        if ranks is None:
            continue
        for rank, found in enumerate(ranks):
            tally = found["tally"]
            record.notes += [
                f"rank {rank} of {world}: wrong in {text}" for text in tally.pop("wrong_in")
            ]
            for name in ("resident_bytes", "threads", "descriptors"):
                record.cases.append(
                    Case(
                        args.backend,
                        {"ranks": world, "rank": rank, "what": name},
                        [[usage[name] for usage in found["usage"]]],
                        unit=name,
                        facts=tally | {"elapsed_s": found["elapsed_s"]},
                    )
                )
    if not record.cases:
        return 0
    path = record.save(default_path(record, Path(args.out)))
    print_record(record)
    print(f"\nraw: {path}")
    return 1 if any(case.facts["wrong"] for case in record.cases) else 0


def print_record(record: Record) -> None:
    """The table of a stress record."""
    print(f"\n{record.machine.sentence()}\n{record.settings['title']}; {record.command}\n")
    rows = []
    for case in record.find(what="resident_bytes"):
        facts, memory = case.facts, [n / 2**20 for n in case.samples]
        settled = memory[min(len(memory) - 1, len(memory) // 4)]
        labels: dict[str, Label] = {name: case.labels[name] for name in ("ranks", "rank")}
        fds, threads = (
            record.find(None, what=w, **labels)[0].samples for w in ("descriptors", "threads")
        )
        gigabytes = facts["wire_bytes"] / GB
        rows.append(
            [
                f"{labels['rank']} of {labels['ranks']}",
                f"{facts['operations']:.0f}",
                f"{gigabytes:.2f}",
                f"{facts['wrong']:.0f}",
                f"{gigabytes / facts['busy_s']:.3f}",
                f"{facts['cpu_s'] / facts['busy_s']:.2f}",
                f"{facts['cpu_s'] / gigabytes:.3f}",
                f"{settled:.0f} -> {memory[-1]:.0f}",
                f"{fds[min(1, len(fds) - 1)]:.0f} -> {fds[-1]:.0f}",
                f"{threads[min(1, len(threads) - 1)]:.0f} -> {threads[-1]:.0f}",
            ]
        )
    header = [
        "rank",
        "operations",
        "GB sent",
        "#wrong",
        "GB/s",
        "cores",
        "core-s/GB",
        "memory MiB",
        "descriptors",
        "threads",
    ]
    print(render(header, rows))
    print(
        f"\nThe paper: {PAPER_CORES} of a core at {PAPER_GB_S} GB/s, "
        f"{PAPER_CORES / PAPER_GB_S:.3f} core-seconds a GB. Memory is compared from a quarter of "
        "the run on; GB/s and cores count the time from issue to the last wait."
    )
    for note in record.notes:
        print(f"note: {note}")
