#!/usr/bin/env python3
"""Everything that must be green, in order of cost: lint, native tests, Python tests.

    .venv/bin/python tools/check.py [--only lint|native|pytest]

Every stage runs even when an earlier one failed, so one run shows all there is to mend.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
NATIVE = ROOT / "build" / "native-test"


def commands(only: str | None) -> Iterator[tuple[str, list[str]]]:
    """(name, command) in the order they run."""
    if only in (None, "lint"):
        yield "ruff check", [str(BIN / "ruff"), "check"]
        yield "ruff format", [str(BIN / "ruff"), "format", "--check"]
        yield "mypy", [str(BIN / "mypy")]
        yield "import directions", [str(BIN / "lint-imports"), "--no-cache"]
    if only in (None, "native"):
        cmake, ninja = str(BIN / "cmake"), f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}"
        options = ["-G", "Ninja", ninja, "-DCMAKE_BUILD_TYPE=Release", "-DMCCL_BUILD_TESTS=ON"]
        yield "native configure", [cmake, "-S", "native", "-B", str(NATIVE), *options]
        yield "native build", [cmake, "--build", str(NATIVE)]
        ctest = [str(BIN / "ctest"), "--test-dir", str(NATIVE), "--output-on-failure"]
        yield "native tests", [*ctest, "--timeout", "300"]
    if only in (None, "pytest"):
        # Tests marked network download several hundred MB: `pytest -m network` runs them.
        yield "pytest", [sys.executable, "-m", "pytest", "-q", "-m", "not network"]


def main() -> int:
    """Entry point; 0 when all stages passed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("lint", "native", "pytest"))
    only = parser.parse_args().only
    # Ranks of a test share the cores; more threads each only makes them wait for one another.
    environ = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    results = []
    for name, command in commands(only):
        print(f"\n=== {name}", flush=True)
        begin = time.monotonic()
        code = subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode
        results.append((name, code, time.monotonic() - begin))
    print("\n=== summary")
    for name, code, seconds in results:
        print(f"{'ok  ' if code == 0 else 'FAIL'}  {name:20s} {seconds:7.1f} s")
    return int(any(code for _, code, _ in results))


if __name__ == "__main__":
    raise SystemExit(main())
