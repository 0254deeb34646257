"""``mccl demo``: start the ranks, then one rank alone, then report."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mccl.cli.run import run_here
from mccl.demo.settings import Outcome, Settings

BASE = Settings()


def add_parser(subparsers: Any) -> None:
    """Add ``demo``."""
    parser = subparsers.add_parser(
        "demo",
        help="train a small model on this machine over mccl and show what happened",
        description="Train a GroupNorm ResNet on real images with DDP over mccl, and compare with "
        "one rank at the same global batch.",
    )
    parser.add_argument("-n", "--ranks", type=int, default=2, help="ranks (2)")
    parser.add_argument(
        "--data",
        default=BASE.data,
        help="auto, digits, fashion-mnist[:FOLDER] or cifar10[:FOLDER]; auto takes CIFAR-10 or "
        "Fashion-MNIST where it finds it, else the digits that ship with scikit-learn",
    )
    parser.add_argument("--steps", type=int, default=BASE.steps, help=f"steps ({BASE.steps})")
    parser.add_argument("--batch", type=int, default=BASE.batch, help=f"global ({BASE.batch})")
    parser.add_argument("--device", default="auto", help="auto, cpu, mps or cuda")
    parser.add_argument("--backend", default=BASE.backend, help="mccl, or gloo to compare")
    parser.add_argument("--no-compare", action="store_true", help="leave out the run on one rank")
    parser.add_argument("--json", type=Path, help="write both outcomes to this file")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the parsed command; 0 when all ranks ended with the same weights."""
    from mccl.demo.show import report, say

    problem = _problem(options)
    if problem:
        print(f"mccl demo: {problem}", file=sys.stderr)
        return 2
    begin = time.monotonic()
    cores = os.cpu_count() or 1
    settings = Settings(
        data=options.data,
        steps=options.steps,
        batch=options.batch,
        backend=options.backend,
        device=_device(options.device),
        threads=max(1, cores // options.ranks),
        title=f"{options.ranks} ranks over {options.backend}",
    )
    runs = [(settings, options.ranks)]
    if not options.no_compare and options.ranks > 1:
        title = "1 rank, same global batch"
        # As many threads as each of the ranks has: one rank stands for one machine.
        runs.append((dataclasses.replace(settings, title=title), 1))
    outcomes = []
    for part, ranks in runs:
        outcome = _train(part, ranks)
        if isinstance(outcome, int):
            return outcome
        outcomes.append(outcome)
    many = outcomes[0]
    for line in report(many, outcomes[1] if len(outcomes) > 1 else None):
        say(line)
    say(f"The demo took {time.monotonic() - begin:.0f} s.")
    if options.json:
        found = [dataclasses.asdict(outcome) for outcome in outcomes]
        options.json.write_text(json.dumps(found, indent=1))
    return 0 if many.identical else 1


def _problem(options: argparse.Namespace) -> str | None:
    from mccl.data import DataError, load_images

    if options.ranks < 1 or options.batch < 1 or options.batch % options.ranks:
        return f"--batch {options.batch} must be a multiple of --ranks {options.ranks}, both >= 1"
    if options.steps < 10:
        return f"--steps {options.steps}: expected at least 10"
    try:
        images = load_images(options.data)
    except DataError as error:
        return str(error)
    if len(images.train) < options.batch:
        return f"--batch {options.batch}: {images.name} has {len(images.train)} training images"
    return None


def _device(asked: str) -> str:
    import torch

    if asked != "auto":
        return asked
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _train(settings: Settings, ranks: int) -> Outcome | int:
    """One run under the elastic launcher; its outcome, or the exit code of the rank that failed."""
    with tempfile.TemporaryDirectory(prefix="mccl-demo-") as folder:
        path = Path(folder) / "outcome.json"
        settings = dataclasses.replace(settings, outcome=str(path))
        settings.write(Path(folder) / "settings.json")
        words = ["--standalone", "--nproc-per-node", str(ranks), "--module", "mccl.demo.train"]
        code = run_here([*words, str(Path(folder) / "settings.json")], ranks)
        return code or Outcome.read(path)
