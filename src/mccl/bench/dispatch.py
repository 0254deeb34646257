"""From parsed arguments to the module of a benchmark."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING, Any

from mccl.bench.arguments import COMMANDS, Command

if TYPE_CHECKING:
    from mccl.bench.launch import Launcher


def add_benchmarks(subparsers: Any) -> None:
    """Add one parser for each benchmark; its namespace has ``run(args) -> int``."""
    for command in COMMANDS:
        parser: argparse.ArgumentParser = subparsers.add_parser(
            command.name, aliases=list(command.aliases), help=command.help
        )
        command.add(parser)
        parser.set_defaults(run=run_or_explain, bench_command=command, **dict(command.fixed))


def parser() -> argparse.ArgumentParser:
    """A parser of ``BENCHMARK ARGUMENTS``, for benchmarks that run others."""
    result = argparse.ArgumentParser(prog="mccl bench")
    add_benchmarks(result.add_subparsers(required=True, metavar="BENCHMARK"))
    return result


def run(args: argparse.Namespace, launcher: Launcher | None = None) -> int:
    """Run a parsed benchmark, by default where ``choose_launcher`` says; returns the exit code."""
    from mccl.bench.launch import choose_launcher, ending_on_sigterm

    command: Command = args.bench_command
    module = importlib.import_module(command.module)
    with ending_on_sigterm():
        code: int = module.run(args, launcher or choose_launcher())
    return code


def run_or_explain(args: argparse.Namespace) -> int:
    """``run`` for a person: what went wrong in one line instead of a traceback, exit code 2."""
    from mccl.bench.launch import RankFailedError
    from mccl.data import DataError
    from mccl.errors import UsageError

    try:
        return run(args)
    except (UsageError, DataError, RankFailedError) as error:
        print(f"mccl bench {args.bench_command.name}: {error}", file=sys.stderr)
        return 2
