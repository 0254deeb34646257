"""Compare the simulator with the emulated cluster (Linux, root; a quiet machine).

    python bench/simulator_check.py DIR --run     measure into DIR (minutes), then compare
    python bench/simulator_check.py DIR           compare what is there

Measurements are records of ``mccl bench cluster ... -- all_reduce``. One in a folder ``groups-K``
below DIR ran with ``MCCL_GROUPS=K``. The simulator gets two numbers of each record: the link's
rate, from the plain sockets measured beside it, and the cost of a hop, from the smallest message.
Everything else is prediction; the points that gave the hop are not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mccl.bench.record import Case, Record, load
from mccl.bench.units import format_size
from mccl.model import Network, all_reduce_seconds, blocks
from mccl.plans import Collective, choose

SIZES = "1K,64K,512K,2M,8M,24M"
RUNS = ((4, None), (8, None), (8, 4), (12, None), (12, 4), (16, 8))
"""(hosts, hosts a group or None)."""


@dataclass(frozen=True)
class Compared:
    """One case: what ran, its measured and simulated seconds."""

    hosts: int
    nbytes: int
    algorithm: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Relative, of the simulation."""
        return self.simulated / self.measured - 1


def measure(folder: Path, rate: str, latency: float) -> None:
    """Run the benchmarks of ``RUNS`` one after the other."""
    for hosts, group in RUNS:
        out = folder if group is None else folder / f"groups-{group}"
        environ = os.environ | ({} if group is None else {"MCCL_GROUPS": str(group)})
        cluster = ["--hosts", str(hosts), "--rate", rate, "--latency", str(latency)]
        inner = ["all_reduce", "--sizes", SIZES, "--rounds", "2", "--out", str(out)]
        command = [sys.executable, "-m", "mccl", "bench", "cluster", *cluster, "--", *inner]
        print(f"# {hosts} hosts, groups of {group}", flush=True)
        subprocess.run(command, check=True, env=environ, stdout=subprocess.DEVNULL)


def compare(path: Path) -> list[Compared]:
    """The cases of one record but the smallest."""
    record = load(path)
    parent = path.parent.name
    group = int(parent.removeprefix("groups-")) if parent.startswith("groups-") else None
    found = []
    for hosts in record.labels("ranks"):
        cases = sorted(record.find("mccl", ranks=hosts), key=lambda case: size_of(case))
        rate = link_rate(record, hosts)
        groups = None if group is None else blocks(hosts, group)
        smallest = algorithm_of(size_of(cases[0]), hosts, grouped=groups is not None)
        free = Network(hosts, link=rate, hop=0.0)
        # Rounds of a small message cost a hop each and nothing else.
        one = Network(hosts, link=rate, hop=1.0)
        base, unit = (
            all_reduce_seconds(smallest, network, size_of(cases[0]), groups=groups)
            for network in (free, one)
        )
        network = Network(hosts, link=rate, hop=(cases[0].median - base) / (unit - base))
        for case in cases[1:]:
            nbytes = size_of(case)
            algorithm = algorithm_of(nbytes, hosts, grouped=groups is not None)
            simulated = all_reduce_seconds(algorithm, network, nbytes, groups=groups)
            found.append(Compared(hosts, nbytes, algorithm, case.median, simulated))
    return found


def size_of(case: Case) -> int:
    """Bytes of the tensor."""
    return int(case.labels["nbytes"] or 0)


def algorithm_of(nbytes: int, hosts: int, *, grouped: bool) -> str:
    """What the engine ran, by the default table."""
    return choose(Collective.ALL_REDUCE, nbytes // 4, 4, hosts, grouped=grouped)


def link_rate(record: Record, hosts: int) -> float:
    """Bytes a second of plain sockets, from the largest size."""
    cases = record.find("tcp", ranks=hosts)
    if not cases:
        raise SystemExit("a record without plain sockets: measure without --no-tcp")
    largest = max(cases, key=size_of)
    factor = 2 * (hosts - 1) / hosts
    return size_of(largest) * factor / largest.median


def main() -> int:
    """Entry point; 1 where the median error is above the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", action="store_true", help="measure first")
    parser.add_argument("--rate", default="100mbit", help="of each link")
    parser.add_argument("--latency", type=float, default=1.0, metavar="MS", help="one way")
    parser.add_argument("--limit", type=float, default=5.0, metavar="PERCENT")
    parser.add_argument("--json", type=Path, help="write the comparison here")
    options = parser.parse_args()
    if options.run:
        measure(options.folder, options.rate, options.latency)
    paths = sorted(options.folder.rglob("*.json"))
    compared = [item for path in paths for item in compare(path)]
    if not compared:
        raise SystemExit(f"no records in {options.folder}: measure with --run")
    print(" hosts     size algorithm            measured  simulated   error")
    for c in compared:
        print(
            f"{c.hosts:5d} {format_size(c.nbytes):>8} {c.algorithm:<18} {c.measured * 1e3:7.1f} ms "
            f"{c.simulated * 1e3:7.1f} ms {c.error:+7.1%}"
        )
    median = 100 * statistics.median(abs(c.error) for c in compared)
    worst = 100 * max(abs(c.error) for c in compared)
    print(f"median error {median:.1f}%, worst {worst:.1f}%, {len(compared)} points")
    if options.json is not None:
        points = [vars(c) | {"error": c.error} for c in compared]
        options.json.write_text(json.dumps({"median_percent": median, "points": points}, indent=1))
    return int(median > options.limit)


if __name__ == "__main__":
    raise SystemExit(main())
