"""``mccl bench``: the parser; the benchmarks themselves are in ``mccl.bench``."""

from __future__ import annotations

from typing import Any

from mccl.bench.dispatch import add_benchmarks


def add_parser(subparsers: Any) -> None:
    """Add ``bench`` and its subcommands to the ``mccl`` command.

    Each parsed namespace has ``run(args) -> int``, which gives the exit code.
    """
    parser = subparsers.add_parser("bench", help="measure: collectives, overlap, training, stress")
    add_benchmarks(parser.add_subparsers(dest="benchmark_name", required=True, metavar="BENCHMARK"))
