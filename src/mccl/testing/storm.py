"""Many random faults over real processes: ``python -m mccl.testing.storm --faults 40 --seed 1``.

Each trial lets one fault happen and is judged: did the fault fire, did a rank hang, was a wrong
result handed out, did every survivor raise, did it name the right culprit, how long did that take.
A fault on a link has two right culprits, its ends. A slow rank or link must do no harm at all. The
seed makes the same faults. With ``--out`` every verdict is written down as it falls, and the same
command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from mccl.bench import cluster
from mccl.errors import UsageError
from mccl.testing.faults import LINK_KINDS, Fault, Kind
from mccl.testing.programs import BYTES, PROGRAMS
from mccl.testing.trial import PEER_TIMEOUT, Trial, Verdict, run


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


def read(path: Path) -> dict[int, Verdict]:
    """The verdicts at ``path`` by number of the trial; none if there is no such file."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        values: dict[str, Any] = json.loads(line)
        number, trial = values.pop("number"), values.pop("trial")
        trial["fault"]["kind"] = Kind(trial["fault"]["kind"])
        trial["fault"] = Fault(**trial["fault"])
        found[int(number)] = Verdict(Trial(**trial), **values)
    return found


def write(path: Path, number: int, verdict: Verdict) -> None:
    """Append a verdict as one line of JSON."""
    with path.open("a") as file:
        file.write(json.dumps({"number": number} | asdict(verdict)) + "\n")


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


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m mccl.testing.storm", description=__doc__)
    parser.add_argument("--faults", type=int, default=20, help="number of trials")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--world", default="2..4", help="ranks: one number or a range, 2..4")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--kinds",
        nargs="+",
        type=Kind,
        metavar="KIND",
        help=f"of {', '.join(Kind)} (default: all; unplug needs Linux and root)",
    )
    parser.add_argument("--no-checksum", action="store_true", help="MCCL_CHECKSUM=0: flips do harm")
    parser.add_argument("--jobs", type=int, default=1, help="trials at a time")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no trial after these")
    parser.add_argument("--out", type=Path, help="file of verdicts, a line each; trials in it rest")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 0 when every trial went as it must, also those of earlier commands."""
    options = parse(argv)
    low, _, high = options.world.partition("..")
    worlds = range(int(low), int(high or low) + 1)
    kinds = options.kinds or list(Kind)
    if options.kinds is None and (lack := cluster.missing()) is not None:
        print(f"no {Kind.UNPLUG}: {lack}", file=sys.stderr)
        kinds.remove(Kind.UNPLUG)
    numbers = range(options.first, options.first + options.faults)
    trials = {
        number: replace(draw(options.seed, number, worlds, kinds), checksum=not options.no_checksum)
        for number in numbers
    }
    verdicts = {} if options.out is None else read(options.out)
    for number, verdict in verdicts.items():
        if verdict.trial != trials.get(number, verdict.trial):
            raise UsageError(
                f"trial {number} in {options.out} is another one; give the options it was made "
                "with (seed, world, kinds, checksum), or another file"
            )
    end = time.monotonic() + 60 * options.minutes

    def one(number: int) -> None:
        began = time.monotonic()
        if began > end:
            return
        verdicts[number] = verdict = run(trials[number])
        tell(number, verdict, time.monotonic() - began)
        if options.out is not None:
            write(options.out, number, verdict)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, [number for number in numbers if number not in verdicts]))
    print(report(list(verdicts.values())), flush=True)
    return int(not all(verdict.good for verdict in verdicts.values()))


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
