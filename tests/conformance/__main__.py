"""``python -m tests.conformance``: PyTorch's DistributedTest on mccl beside Gloo."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from tests.conformance.runs import run
from tests.conformance.table import markdown, worse


def main() -> int:
    """Run, print the table; status 1 when mccl fails what Gloo passes."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--backends", default="gloo,mccl", help="reference first")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("-k", dest="select", default="", help="as in pytest")
    parser.add_argument("--test-seconds", type=int, default=60, help="limit of one test")
    parser.add_argument("--write", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    backends = arguments.backends.split(",")
    with ThreadPoolExecutor(len(backends)) as pool:
        running = {
            backend: pool.submit(
                run, backend, arguments.world_size, arguments.select, arguments.test_seconds
            )
            for backend in backends
        }
        results = {backend: future.result() for backend, future in running.items()}
    title = f"DistributedTest, torch {torch.__version__}, {arguments.world_size} ranks, CPU"
    table = markdown(results, title)
    print(table)
    if arguments.write is not None:
        arguments.write.write_text(table)
    reference, *others = results
    missed = [name for other in others for name in worse(results[reference], results[other])]
    if missed:
        print(f"{reference} passes these, another does not: {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
