"""Time collectives on every rank, contestants in rotation, and combine what the ranks saw.

A *cell* is one collective at one size. Within a round every contestant runs every cell; the order
of contestants turns from round to round. One sample is one blocking call, averaged over the ranks
(nccl-tests' default): back to back, that is the time the collective takes, whoever came first.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from mccl.bench import collectives, exact
from mccl.bench.goodput import Ring
from mccl.bench.launch import Launcher, RankContext
from mccl.bench.record import Case
from mccl.errors import UsageError

TCP = "tcp"
"""The contestant that is no backend: plain sockets streaming the ring's bytes."""

GOODPUT_FROM = 64 << 10
"""Bytes from which streaming means anything: below, latency decides, and streams have none."""

_PORTION_BYTES = 4 << 20


@dataclass(frozen=True)
class Cell:
    """One collective at one size."""

    collective: str
    nbytes: int
    dtype: str = "float32"
    redop: str = "sum"
    in_place: bool = True


@dataclass(frozen=True)
class Effort:
    """How long to measure: as many calls as fit ``budget_s``, within the two bounds."""

    budget_s: float = 0.5
    min_iterations: int = 5
    max_iterations: int = 300
    warmup: int = 2
    check: bool = True

    def iterations(self, seconds_each: float) -> int:
        """Calls to time when one takes about ``seconds_each``."""
        wanted = int(self.budget_s / max(seconds_each, 1e-7))
        return max(self.min_iterations, min(self.max_iterations, wanted))


@dataclass
class Measured:
    """One rank's view of one contestant in one cell."""

    series: str
    cell: int
    samples: list[float]
    cpu_s: float
    wrong: int
    count: int


def cpu_seconds() -> float:
    """User and system time of this process so far, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def settle(device: torch.device) -> None:
    """Wait until the accelerator has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def sweep_worker(context: RankContext, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs on each rank: all cells for all contestants of ``options``; see ``measure_round``."""
    torch.set_num_threads(1)
    device = torch.device(options["device"])
    cells = [Cell(**cell) for cell in options["cells"]]
    effort = Effort(**options["effort"])
    series = list(options["series"])
    for name in series:
        if name != TCP:
            context.group(name)
    ring = Ring(context) if TCP in series else None
    measured = []
    for number, cell in enumerate(cells):
        for name in series:
            if name == TCP:
                assert ring is not None
                if cell.collective == "all_reduce" and cell.nbytes >= GOODPUT_FROM:
                    measured.append(_time_ring(context, ring, number, cell, effort))
            else:
                measured.append(_time_backend(context, name, number, cell, effort, device))
    if ring is not None:
        ring.close()
    return [asdict(item) for item in measured]


def _time_ring(
    context: RankContext, ring: Ring, number: int, cell: Cell, effort: Effort
) -> Measured:
    bench = collectives.find(cell.collective)
    dtype = exact.DTYPES[cell.dtype]
    count = collectives.element_count(bench, cell.nbytes, dtype, context.world)
    nbytes = round(count * dtype.itemsize * bench.factor(context.world))
    # Less than a few socket buffers would arrive from memory, not from the link.
    portion = max(nbytes, _PORTION_BYTES)
    context.gather("ready")
    warm = ring.stream(portion, max(2, effort.warmup))
    iterations = effort.iterations(context.share(warm[-1]))
    cpu = cpu_seconds()
    samples = ring.stream(portion, iterations)
    scale = nbytes / portion
    cpu = (cpu_seconds() - cpu) * scale
    samples = [sample * scale for sample in samples]
    return Measured(TCP, number, samples, cpu, 0, count)


def _time_backend(
    context: RankContext,
    backend: str,
    number: int,
    cell: Cell,
    effort: Effort,
    device: torch.device,
) -> Measured:
    bench = collectives.find(cell.collective)
    dtype = exact.DTYPES[cell.dtype]
    count = collectives.element_count(bench, cell.nbytes, dtype, context.world)
    shape = collectives.Shape(
        context.rank, context.world, count, dtype, cell.redop, cell.in_place, device
    )
    group = context.group(backend)
    buffers = bench.allocate(shape)
    bench.fill(buffers, shape)

    def call() -> None:
        bench.call(buffers, shape, group, False)
        settle(device)

    samples, cpu = _timed(context, call, effort)
    wrong = 0
    if effort.check:
        bench.fill(buffers, shape)
        call()
        wrong = bench.wrong(buffers, shape)
    return Measured(backend, number, samples, cpu, wrong, count)


def _timed(
    context: RankContext, call: Callable[[], object], effort: Effort
) -> tuple[list[float], float]:
    """Samples of ``call`` in seconds and the CPU seconds of the timed loop."""
    context.gather("ready")
    for _ in range(max(1, effort.warmup)):
        start = time.perf_counter()
        call()
        last = time.perf_counter() - start
    iterations = effort.iterations(context.share(last))
    call()  # the agreement let the ranks drift apart; this brings them together
    samples = []
    cpu = cpu_seconds()
    for _ in range(iterations):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return samples, cpu_seconds() - cpu


def measure_round(
    launcher: Launcher,
    cells: Sequence[Cell],
    series: Sequence[str],
    world: int,
    effort: Effort,
    device: str = "cpu",
    timeout: float = 600.0,
) -> list[Case] | None:
    """One round: ``series`` (backend names, ``"tcp"``) in this order, over all cells.

    Returns one case per contestant and cell with a single round of samples; its facts are
    ``wrong`` (elements, all ranks), ``cpu_s`` (all ranks, timed calls only) and ``wire_bytes``
    (bytes that all ranks together had to send for the timed calls, by the bus bandwidth factor).
    None on a rank that is not the reporting one.
    """
    options = {
        "cells": [asdict(cell) for cell in cells],
        "series": list(series),
        "effort": asdict(effort),
        "device": device,
    }
    ranks = launcher.run(sweep_worker, options, world, timeout)
    if ranks is None:
        return None
    return [
        _combine([Measured(**rank[item]) for rank in ranks], cells, world)
        for item in range(len(ranks[0]))
    ]


def _combine(ranks: list[Measured], cells: Sequence[Cell], world: int) -> Case:
    first = ranks[0]
    if any(
        (r.series, r.cell, len(r.samples)) != (first.series, first.cell, len(first.samples))
        for r in ranks
    ):
        raise UsageError("ranks measured different things: do all run the same mccl version?")
    cell = cells[first.cell]
    bench = collectives.find(cell.collective)
    size = first.count * exact.DTYPES[cell.dtype].itemsize
    samples = [sum(values) / world for values in zip(*(r.samples for r in ranks), strict=True)]
    labels = asdict(cell) | {
        "ranks": world,
        "count": first.count,
        "nbytes": size,
        "requested": cell.nbytes,
        "factor": bench.factor(world),
    }
    facts = {
        "wrong": float(sum(r.wrong for r in ranks)),
        "cpu_s": sum(r.cpu_s for r in ranks),
        "wire_bytes": size * bench.factor(world) * world * len(samples),
    }
    return Case(first.series, labels, [samples], facts=facts)


def bus_bandwidth(case: Case, seconds: float | None = None) -> float:
    """Bus bandwidth of a sweep case in bytes a second, at its median or at ``seconds``.

    ``size / time * factor``, nccl-tests' definition (its ``doc/PERFORMANCE.md``).
    """
    taken = case.median if seconds is None else seconds
    nbytes, factor = case.labels["nbytes"], case.labels["factor"]
    assert isinstance(nbytes, int)
    assert isinstance(factor, float)
    return nbytes / taken * factor if taken > 0 else float("nan")
