"""The ``mccl`` command.

Each subcommand is a module of this package with ``add_parser(subparsers)``, which adds a parser
whose namespace has ``run(args) -> int``, the exit code. Only the one that was asked for is
imported, so ``mccl --version`` stays quick and a broken subcommand breaks no other.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Sequence

COMMANDS: tuple[tuple[str, str], ...] = (
    ("demo", "train a small model on this machine over mccl and show what happened"),
    ("run", "start a training script on several ranks, here or on several hosts"),
    ("doctor", "examine this machine and say what to mend"),
    ("check", "compare a model on a device with float64 on the CPU, layer by layer"),
    ("bench", "measure: collectives, overlap, training, stress"),
    ("plan", "predict bandwidth, step time and efficiency of a fleet, and advise"),
    ("explain", "say who waits for whom, from the flight records of a hung or failed run"),
    ("fleet", "lend and take back idle machines"),
)
"""Name and one line of help; a name whose module is not installed is not offered."""


def available() -> dict[str, str]:
    """Subcommands that are installed, with their line of help."""
    return {
        name: text
        for name, text in COMMANDS
        if importlib.util.find_spec(f"{__name__}.{name}") is not None
    }


def build_parser(asked: str | None) -> argparse.ArgumentParser:
    """The parser; full for the subcommand `asked`, name and help alone for the others."""
    from mccl import __version__

    parser = argparse.ArgumentParser(
        prog="mccl",
        description="torch.distributed over ordinary Ethernet: run, examine and measure it.",
        epilog="`mccl COMMAND --help` says more about one command.",
    )
    parser.add_argument("--version", action="version", version=f"mccl {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in available().items():
        if name == asked:
            importlib.import_module(f"{__name__}.{name}").add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of the ``mccl`` command; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    asked = next((word for word in words if not word.startswith("-")), None)
    parser = build_parser(asked)
    if not words:
        parser.print_help()
        return 0
    options = parser.parse_args(words)
    from mccl import log
    from mccl.config import Config, ConfigError

    try:
        log.setup(Config.from_env())
        code: int = options.run(options)
    except ConfigError as error:
        print(f"mccl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mccl: interrupted", file=sys.stderr)
        return 130
    return code
