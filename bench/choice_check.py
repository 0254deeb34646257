"""How far the automatic choice is from the best algorithm, on a grid of simulated networks.

    python bench/choice_check.py                paper's network, sizes between those of the table
    python bench/choice_check.py --json FILE    every point

Each network gets the tables that ``mccl plan --tune`` would write. At sizes that the tables were
not made from, every algorithm is simulated and the chosen one compared with the fastest. Beside it
stands what the threshold would have chosen. The exit code is 1 where a choice is off by more than
``--limit``.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mccl.bench.units import format_size
from mccl.model import Network, blocks
from mccl.model.predict import collective_seconds
from mccl.model.tune import entry, offered
from mccl.plans import Collective, choose
from mccl.plans.choose import SMALL_MESSAGE_BYTES
from mccl.plans.tuning import TUNED, Tuning

SIZES = (1000, 20_000, 100_000, 300_000, 777_777, 2 << 20, 5 << 20, 13 << 20, 25 << 20, 90 << 20)

CASES: tuple[tuple[int, int | None, float, str], ...] = (
    (4, None, 1, "switch"),
    (12, None, 1, "switch"),
    (24, None, 1, "switch"),
    (24, 8, 1, "switch"),
    (24, 8, 8, "switch"),
    (24, 8, 8, "dealt"),
    (64, None, 1, "switch"),
    (100, None, 1, "switch"),
    (200, None, 1, "switch"),
    (200, 40, 1, "switch"),
)
"""(hosts, hosts a switch or None, oversubscription of the uplinks, how ranks are numbered)."""


@dataclass(frozen=True)
class Chosen:
    """Times in seconds of the choice, of the fastest algorithm and of the threshold's choice."""

    collective: str
    hosts: int
    group: int | None
    oversubscription: float
    numbering: str
    nbytes: int
    algorithm: str
    best: str
    seconds: float
    best_seconds: float
    threshold_seconds: float

    @property
    def excess(self) -> float:
        """Share by which the choice is slower than the fastest."""
        return self.seconds / self.best_seconds - 1

    @property
    def threshold_excess(self) -> float:
        """The same of the threshold's choice."""
        return self.threshold_seconds / self.best_seconds - 1


def grid(hosts: int, group: int | None, slow: float, numbering: str) -> Iterator[Chosen]:
    """Every tuned collective and size of one case."""
    groups = None if group is None else blocks(hosts, group)
    if groups is not None and numbering == "dealt":
        groups = tuple(tuple(range(i, hosts, len(groups))) for i in range(len(groups)))
    switches = groups if groups is not None and slow > 1 else ()
    network = Network(hosts, switches=switches, oversubscription=slow)
    table = Tuning([entry(network, hosts, groups)]).table(hosts, groups, SMALL_MESSAGE_BYTES)
    for collective in TUNED:
        # What is beyond all-reduce takes no groups; one grouped case of each network is enough.
        if groups is not None and collective is not Collective.ALL_REDUCE:
            continue
        for nbytes in SIZES:
            times = {
                name: collective_seconds(collective, name, network, nbytes, groups=groups)
                for name in offered(collective, hosts, groups)
            }
            tuned, default = (
                choose(collective, nbytes // 4, 4, hosts, grouped=groups is not None, table=t)
                for t in (table, None)
            )
            best = min(times, key=lambda name: times[name])
            yield Chosen(
                collective.name.lower(),
                hosts,
                group,
                slow,
                numbering,
                nbytes,
                tuned,
                best,
                times[tuned],
                times[best],
                times[default],
            )


def main() -> int:
    """Entry point; 1 where a choice is off by more than the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=5.0, metavar="PERCENT")
    parser.add_argument("--max-hosts", type=int, default=200, metavar="N", help="skip larger cases")
    parser.add_argument("--json", type=Path, help="write every point here")
    options = parser.parse_args()
    points: list[Chosen] = []
    print("hosts  groups of  uplinks  numbered  points  worst choice           worst threshold")
    for case in CASES:
        if case[0] > options.max_hosts:
            continue
        found = list(grid(*case))
        points += found
        worst = max(found, key=lambda c: c.excess)
        threshold = max(found, key=lambda c: c.threshold_excess)
        hosts, group, slow, numbering = case
        print(
            f"{hosts:5d}  {group or '-':>9}  {f'1/{slow:g}':>7}  {numbering:8}  {len(found):6d}  "
            f"{worst.excess:+6.1%} at {format_size(worst.nbytes):>6}     "
            f"{threshold.threshold_excess:+8.0%} {threshold.collective} "
            f"{format_size(threshold.nbytes)}",
            flush=True,
        )
    worst = max(points, key=lambda c: c.excess)
    within = statistics.mean(c.threshold_excess <= options.limit / 100 for c in points)
    print(
        f"{len(points)} points: the choice is at most {worst.excess:.1%} slower than the fastest "
        f"({worst.hosts} hosts, {worst.collective}, {format_size(worst.nbytes)}); the threshold is "
        f"within {options.limit:g}% at {within:.0%} of them"
    )
    if options.json is not None:
        rows = [vars(c) | {"excess": c.excess} for c in points]
        options.json.write_text(json.dumps(rows, indent=1))
    return int(100 * worst.excess > options.limit)


if __name__ == "__main__":
    raise SystemExit(main())
