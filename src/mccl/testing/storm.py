"""Many random faults over real processes: ``python -m mccl.testing.storm --faults 40 --seed 1``.

Each trial starts its ranks from a fork server that has torch loaded, lets one fault happen, and
is judged: did the fault fire, did a rank hang, was a wrong result handed out, did every survivor
raise, did it name the right culprit, how long did that take. A fault on a link has two right
culprits, its ends. A slow rank or link must do no harm at all. The seed makes the same faults.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from mccl.testing.faults import LINK_KINDS, Fault, Kind, read_marker
from mccl.testing.programs import BYTES, PROGRAMS, Outcome, play

PEER_TIMEOUT = 3.0
"""MCCL_PEER_TIMEOUT of the ranks."""

LIMIT = 60.0
"""Seconds after which a rank that has said nothing hangs."""

_context = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Trial:
    """One run of one program with one fault."""

    seed: str
    world: int
    program: str
    fault: Fault
    checksum: bool = True
    """Without it a flipped bit of a payload is not seen: the storm must find the wrong result."""


@dataclass
class Verdict:
    """What came of a trial."""

    trial: Trial
    fired: bool
    hung: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    quiet: list[int] = field(default_factory=list)
    """Survivors that raised nothing, or whose next call did not raise."""
    alarms: list[str] = field(default_factory=list)
    """Errors where none was due."""
    blamed: list[bool] = field(default_factory=list)
    """Whether each survivor named the right culprit."""
    seconds: list[float] = field(default_factory=list)
    """From the fault to each survivor's error."""
    texts: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether all is as it must be."""
        bad = self.hung or self.wrong or self.quiet or self.alarms or not all(self.blamed)
        return self.fired and not bad


def draw(seed: int, number: int, worlds: Sequence[int], kinds: Sequence[Kind]) -> Trial:
    """The trial of this number; the same for the same arguments."""
    chance = random.Random(f"{seed}/{number}")
    world, kind = chance.choice(worlds), kinds[number % len(kinds)]
    program = chance.choice(sorted(PROGRAMS))
    at_byte = kind in LINK_KINDS or chance.random() < 0.5
    fault = Fault(
        kind,
        chance.randrange(world),
        collective=chance.randint(2, 8),
        byte=chance.randrange(chance.choice((64, BYTES))) if at_byte else None,
        bit=chance.randrange(8),
        rate=chance.choice((2e6, 2e7)),
        seconds=chance.choice((0.2, 2 * PEER_TIMEOUT)),
    )
    return Trial(f"{seed}/{number}", world, program, fault)


def run(trial: Trial) -> Verdict:
    """Play one trial and judge it; leaves no process behind."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory(prefix="mccl-storm-") as folder:
        marker = Path(folder) / "fired"
        processes: list[Any] = []
        waiting: dict[connection.Connection, int] = {}
        try:
            for rank in range(trial.world):
                reader, writer = _context.Pipe(duplex=False)
                process = _context.Process(
                    target=_rank, args=(writer, rank, store.port, trial, marker), daemon=True
                )
                process.start()
                writer.close()
                processes.append(process)
                waiting[reader] = rank
            return _judge(trial, _collect(trial, waiting), marker)
        finally:
            for process in processes:
                process.kill()
                process.join()


def _collect(trial: Trial, waiting: dict[connection.Connection, int]) -> dict[int, Outcome | None]:
    """Outcomes by rank; None for a rank that ended without a word. A hung one is absent."""
    dies = trial.fault.kind in (Kind.KILL, Kind.STOP)
    expected = trial.world - dies
    found: dict[int, Outcome | None] = {}
    deadline = time.monotonic() + LIMIT
    while waiting and sum(rank != trial.fault.rank or not dies for rank in found) < expected:
        ready = connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for reader in [reader for reader in waiting if reader in ready]:
            rank = waiting.pop(reader)
            try:
                found[rank] = reader.recv()
            except EOFError:
                found[rank] = None
    return found


def _judge(trial: Trial, found: dict[int, Outcome | None], marker: Path) -> Verdict:
    fault, fired = trial.fault, read_marker(marker)
    verdict = Verdict(trial, fired is not None)
    guilty = {fault.rank, *([fired.peer] if fired and fault.kind in LINK_KINDS else [])}
    for rank in range(trial.world):
        if rank == fault.rank and fault.kind in (Kind.KILL, Kind.STOP) and fired:
            continue
        outcome = found.get(rank)
        if rank not in found:
            verdict.hung.append(rank)
            continue
        if outcome is None:
            verdict.alarms.append(f"rank {rank} ended without a word")
            continue
        verdict.wrong += [f"rank {rank} {text}" for text in outcome.wrong]
        if outcome.error is not None:
            verdict.texts.append(f"rank {rank}: {outcome.error}: {outcome.text}")
        if fired is None or fault.kind is Kind.SLOW:
            if outcome.error is not None:
                verdict.alarms.append(f"rank {rank} raised {outcome.error}")
            continue
        if outcome.error is None or not outcome.kept:
            verdict.quiet.append(rank)
        if outcome.error is not None:
            verdict.blamed.append(outcome.peer in guilty)
            verdict.seconds.append(outcome.at - fired.time)
    return verdict


def _rank(writer: Any, rank: int, port: int, trial: Trial, marker: Path) -> None:
    """One process of a trial."""
    # The fork server's children inherit its environment; what the group reads is set here.
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(trial.world),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(trial.world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        MCCL_PEER_TIMEOUT=str(PEER_TIMEOUT),
        MCCL_CHECKSUM=str(int(trial.checksum)),
    )
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(
        "mccl", store=store, rank=rank, world_size=trial.world, timeout=timedelta(seconds=LIMIT / 2)
    )
    outcome = play(rank, trial.world, trial.program, trial.seed, trial.fault, marker)
    writer.send(outcome)
    if outcome.error is None:
        # A group that is fine ends together: else the first to leave would be the fault.
        with contextlib.suppress(RuntimeError):
            dist.barrier()
    dist.destroy_process_group()
    # Interpreters are torn down in other tests; here it would take most of the time.
    os._exit(0)


def report(verdicts: Sequence[Verdict]) -> str:
    """Counts by kind of fault, in a table."""
    rows = [("fault", "trials", "fired", "hangs", "wrong", "quiet", "alarms", "culprit right",
             "median s", "worst s")]  # fmt: skip
    kinds = sorted({v.trial.fault.kind for v in verdicts})
    for name, some in [
        *((str(kind), [v for v in verdicts if v.trial.fault.kind is kind]) for kind in kinds),
        ("all", list(verdicts)),
    ]:
        seconds = [s for v in some for s in v.seconds]
        blamed = [b for v in some for b in v.blamed]
        rows.append(
            (
                name,
                str(len(some)),
                str(sum(v.fired for v in some)),
                str(sum(len(v.hung) for v in some)),
                str(sum(len(v.wrong) for v in some)),
                str(sum(len(v.quiet) for v in some)),
                str(sum(len(v.alarms) for v in some)),
                f"{sum(blamed)}/{len(blamed)}" if blamed else "-",
                f"{statistics.median(seconds):.2f}" if seconds else "-",
                f"{max(seconds):.2f}" if seconds else "-",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 0 when every trial went as it must."""
    parser = argparse.ArgumentParser(prog="python -m mccl.testing.storm", description=__doc__)
    parser.add_argument("--faults", type=int, default=20, help="number of trials")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--world", default="2..4", help="ranks: one number or a range, 2..4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", type=Kind, default=list(Kind), metavar="KIND")
    parser.add_argument("--no-checksum", action="store_true", help="MCCL_CHECKSUM=0: flips do harm")
    options = parser.parse_args(argv)
    low, _, high = options.world.partition("..")
    worlds = range(int(low), int(high or low) + 1)
    # torch._dynamo: what DDP imports when it is made, most of a trial's time otherwise.
    _context.set_forkserver_preload(["torch", "torch._dynamo", "mccl.testing.programs"])
    verdicts = []
    for number in range(options.first, options.first + options.faults):
        began = time.monotonic()
        trial = draw(options.seed, number, worlds, options.kinds)
        verdict = run(replace(trial, checksum=not options.no_checksum))
        verdicts.append(verdict)
        tell(number, verdict, time.monotonic() - began)
    print(report(verdicts), flush=True)
    return int(not all(verdict.good for verdict in verdicts))


def tell(number: int, verdict: Verdict, took: float) -> None:
    """One line a trial, and everything about one that went wrong."""
    trial, fault = verdict.trial, verdict.trial.fault
    where = "before it" if fault.byte is None else f"byte {fault.byte}"
    print(
        f"#{number} {'ok' if verdict.good else 'BAD'} {fault.kind} at rank {fault.rank} of "
        f"{trial.world}, {trial.program}, collective {fault.collective}, {where}: {took:.1f} s",
        flush=True,
    )
    if not verdict.good:
        print(f"   {verdict}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # Not as __main__, so that the fork server's children find the same classes.
    from mccl.testing.storm import main as run_storm

    sys.exit(run_storm())
