"""What the tests of this room share."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from mccl.cli import bench as cli

Command = Callable[..., int]


@pytest.fixture
def command() -> Command:
    """``command("allreduce", "--sizes", "8")`` runs ``mccl bench …`` here; gives the exit code."""

    def run(*words: str) -> int:
        parser = argparse.ArgumentParser()
        cli.add_parser(parser.add_subparsers(required=True))
        args = parser.parse_args(["bench", *words])
        code: int = args.run(args)
        return code

    return run
