"""Command-line arguments of the benchmarks. Imports nothing heavy: ``mccl --help`` reads this."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

ALL_REDUCE_SIZES = "8-1G*4"
COMPARE_SIZES = "4,16,64,256,1K,4K,16K,64K,256K,1M,4M,16M,25M,64M,256M"


@dataclass(frozen=True)
class Command:
    """A subcommand of ``mccl bench``: its module has ``run(args, launcher) -> int``."""

    name: str
    module: str
    help: str
    add: Callable[[argparse.ArgumentParser], None]
    aliases: tuple[str, ...] = ()
    fixed: tuple[tuple[str, str], ...] = ()
    """Attributes set on the parsed arguments."""


def _output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        default="bench-results",
        metavar="DIR",
        help="folder for the JSON record (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=1800.0,
        metavar="S",
        help="kill all ranks after this many seconds (default: %(default)s)",
    )


def _who(parser: argparse.ArgumentParser, ranks: str = "2") -> None:
    parser.add_argument(
        "--backend",
        default="mccl",
        help="torch.distributed backend to measure (default: %(default)s)",
    )
    parser.add_argument(
        "--ranks",
        default=ranks,
        metavar="N[,N…]",
        help="world sizes on this machine (default: %(default)s); on a cluster "
        "or in a job it is the number of hosts or ranks there",
    )
    _output(parser)


def _effort(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument(
        "--rounds", type=int, default=rounds, help="interleaved rounds (default: %(default)s)"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=0.5,
        metavar="S",
        help="seconds to measure one case in one round (default: %(default)s)",
    )
    parser.add_argument("--min-iterations", type=int, default=5, metavar="N")
    parser.add_argument("--max-iterations", type=int, default=300, metavar="N")
    parser.add_argument("--no-check", action="store_true", help="do not check results")


def add_single(parser: argparse.ArgumentParser) -> None:
    """One collective, nccl-tests' columns."""
    _who(parser)
    _effort(parser, rounds=3)
    parser.add_argument(
        "--sizes",
        default=ALL_REDUCE_SIZES,
        help="list 16M,64M or range 8-1G or 8-1G*4 (default: %(default)s)",
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--redop", default="sum", choices=["sum", "avg", "product", "min", "max"])
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps (default: %(default)s)")
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="BACKEND",
        help="measure this backend beside it, e.g. gloo; may be repeated",
    )
    parser.add_argument(
        "--no-tcp",
        action="store_true",
        help="do not measure plain-socket goodput beside all_reduce",
    )
    parser.add_argument(
        "--min-busbw",
        type=float,
        metavar="GB/s",
        help="fail unless the largest size reaches this bus bandwidth",
    )
    parser.add_argument(
        "--min-goodput",
        type=float,
        metavar="PERCENT",
        help="fail unless every size from 1 MiB up reaches this share of the "
        "goodput of plain sockets (all_reduce)",
    )


def add_compare(parser: argparse.ArgumentParser) -> None:
    """The figures of the README."""
    _who(parser, ranks="2,4")
    _effort(parser, rounds=3)
    parser.add_argument("--sizes", default=COMPARE_SIZES)
    parser.add_argument(
        "--peer",
        action="append",
        default=None,
        metavar="BACKEND",
        help="backends beside it (default: gloo)",
    )
    parser.add_argument("--no-openmpi", action="store_true", help="leave OpenMPI's TCP out")


def add_peers(parser: argparse.ArgumentParser) -> None:
    """Everything that carries a TCP all-reduce."""
    _who(parser, ranks="2,4")
    _effort(parser, rounds=3)
    parser.add_argument("--sizes", default="1K,64K,1M,25M,256M")


def add_overlap(parser: argparse.ArgumentParser) -> None:
    """Communication behind compute."""
    _who(parser)
    parser.add_argument("--device", default="simulated", choices=["simulated", "cuda", "mps"])
    parser.add_argument("--buckets", type=int, default=18)
    parser.add_argument("--bucket-size", default="25M")
    parser.add_argument(
        "--schedule",
        default="even",
        choices=["even", "tapered"],
        help="even: equal buckets at equal intervals, as in the paper; tapered: "
        "the last bucket halves down to 1/16, as DDP's bucket_cap_mb_list can",
    )
    parser.add_argument(
        "--compute",
        type=float,
        metavar="S",
        help="seconds of compute a step (default: communication / --ratio)",
    )
    parser.add_argument(
        "--ratio",
        type=float,
        default=0.68,
        help="communication over compute when --compute is not given "
        "(default: %(default)s, the paper's 0.74 s of 1.09 s)",
    )
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each way")
    parser.add_argument("--peer", action="append", default=[], metavar="BACKEND")
    parser.add_argument(
        "--min-hidden",
        type=float,
        metavar="PERCENT",
        help="fail unless this share of communication is hidden",
    )


def add_train(parser: argparse.ArgumentParser) -> None:
    """The ViT under DDP."""
    _who(parser, ranks="1,2")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or mps (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=256, help="images a rank")
    parser.add_argument("--steps", type=int, default=5, help="timed steps in each of three turns")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--depth", type=int, help="transformer blocks (default: the full model)")
    parser.add_argument("--width", type=int, help="embedding width (default: the full model)")
    parser.add_argument("--heads", type=int, help="attention heads (default: the full model)")
    parser.add_argument("--bucket-mb", type=float, default=25.0, help="DDP's bucket_cap_mb")
    parser.add_argument(
        "--precision",
        default="highest",
        choices=["highest", "high"],
        help="float32 matmul precision",
    )
    parser.add_argument(
        "--no-staged", action="store_true", help="leave the hand-staged Gloo reducer out"
    )


def add_converge(parser: argparse.ArgumentParser) -> None:
    """The ResNet on real images."""
    _who(parser, ranks="1,2,4,8")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--size",
        default="full",
        choices=["full", "demo"],
        help="31.6 M parameters, or one that suits two CPU cores",
    )
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=64, help="images a rank")
    parser.add_argument("--evaluate-every", type=int, default=25, metavar="STEPS")
    parser.add_argument("--validation-images", type=int, default=2000)
    parser.add_argument(
        "--data",
        default="auto",
        help="data set name of mccl.data; auto: CIFAR-10 where present, "
        "else Fashion-MNIST, else the one that ships in a package",
    )
    parser.add_argument("--seed", type=int, default=0)


def add_stress(parser: argparse.ArgumentParser) -> None:
    """Back-to-back collectives, each checked."""
    _who(parser, ranks="4")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--sizes", default="4,1000,64K,1M,16M,25M")
    parser.add_argument("--burst", type=int, default=16, help="async collectives in flight")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--pause",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="rest between rounds, so that a soak can share a machine",
    )
    parser.add_argument(
        "--log",
        default="",
        metavar="FILE",
        help="append each rank's counts, memory, threads and descriptors after every round, "
        "one JSON object a line",
    )


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Any benchmark on emulated hosts."""
    parser.add_argument("--hosts", default="4", metavar="N[,N…]", help="hosts, one rank each")
    parser.add_argument("--rate", default="200mbit", help="rate of each link, each way")
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument(
        "--latency",
        type=float,
        default=0.0,
        metavar="MS",
        help="one-way latency from host to host, by a user-space switch (default: %(default)s)",
    )
    parser.add_argument(
        "--groups",
        type=int,
        default=1,
        metavar="N",
        help="switches that share the hosts, each with a subnet of its own (default: %(default)s)",
    )
    parser.add_argument(
        "--uplink",
        metavar="RATE",
        help="rate between a switch and the rest, each way (default: unlimited)",
    )
    parser.add_argument(
        "--numbering",
        default="switch",
        choices=["switch", "dealt"],
        help="number the hosts switch by switch, or deal them out (default: %(default)s)",
    )
    parser.add_argument(
        "--event",
        action="append",
        default=[],
        metavar="'T ACTION HOST [RATE]'",
        help="at T seconds: cut, slow (with a rate) or restore the link of a host, "
        "e.g. --event '5 slow 3 10mbit'; may be repeated",
    )
    parser.add_argument(
        "benchmark",
        nargs=argparse.REMAINDER,
        help="-- BENCHMARK and its arguments, e.g. -- all_reduce --sizes 16M",
    )


def add_report(parser: argparse.ArgumentParser) -> None:
    """Figures of a folder of records."""
    parser.add_argument("folder", help="folder with JSON records of other benchmarks")
    parser.add_argument("--out", metavar="DIR", help="where to write (default: the folder)")


_SINGLES = {
    "all_reduce": "allreduce",
    "broadcast": None,
    "reduce": None,
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "gather": None,
    "scatter": None,
    "all_to_all": "alltoall",
    "sendrecv": None,
}

COMMANDS = (
    *(
        Command(
            name,
            "mccl.bench.single",
            f"{name}: nccl-tests' columns by size",
            add_single,
            (alias,) if alias else (),
            (("collective", name),),
        )
        for name, alias in _SINGLES.items()
    ),
    Command(
        "compare",
        "mccl.bench.compare",
        "loopback: this backend, Gloo, OpenMPI and plain TCP in one run",
        add_compare,
    ),
    Command("peers", "mccl.bench.peers", "every peer that is installed, same work", add_peers),
    Command(
        "overlap", "mccl.bench.overlap", "how much communication hides behind compute", add_overlap
    ),
    Command(
        "train", "mccl.bench.train", "ViT under DDP: samples/s, exposed communication", add_train
    ),
    Command("converge", "mccl.bench.converge", "ResNet on real images by world size", add_converge),
    Command("stress", "mccl.bench.stress", "collectives for a set time, all checked", add_stress),
    Command(
        "cluster",
        "mccl.bench.emulate",
        "run a benchmark on emulated hosts (Linux, root)",
        add_cluster,
    ),
    Command(
        "report", "mccl.bench.report", "HTML and PNG figures of a folder of records", add_report
    ),
)
