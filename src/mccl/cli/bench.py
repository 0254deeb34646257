"""``mccl bench``: the parser, and the hand-over to the benchmark's own module."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING, Any

from mccl.bench.arguments import COMMANDS, Command

if TYPE_CHECKING:
    from mccl.bench.launch import Launcher


def add_parser(subparsers: Any) -> None:
    """Add ``bench`` and its subcommands to the ``mccl`` command.

    Each parsed namespace has ``run(args) -> int``, which gives the exit code.
    """
    parser = subparsers.add_parser("bench", help="measure: collectives, overlap, training, stress")
    add_benchmarks(parser.add_subparsers(dest="benchmark_name", required=True, metavar="BENCHMARK"))


def add_benchmarks(subparsers: Any) -> None:
    """Add one parser for each benchmark."""
    for command in COMMANDS:
        parser: argparse.ArgumentParser = subparsers.add_parser(
            command.name, aliases=list(command.aliases), help=command.help
        )
        command.add(parser)
        parser.set_defaults(run=run, command=command, **dict(command.fixed))


def run(args: argparse.Namespace, launcher: Launcher | None = None) -> int:
    """Run a parsed benchmark, by default where ``choose_launcher`` says; returns the exit code."""
    from mccl.bench.launch import choose_launcher, ending_on_sigterm

    command: Command = args.command
    module = importlib.import_module(command.module)
    with ending_on_sigterm():
        code: int = module.run(args, launcher or choose_launcher())
    return code
