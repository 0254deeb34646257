"""``mccl doctor --metal``: proves the handoff on the Mac it runs on, or shows where it breaks.

Two ranks on this machine share its GPU. Each check stands for an invariant of
``docs/handoff.md`` and is judged on the device, so that looking does not synchronise what
is being looked at. The report ends with the versions that matter and can be pasted as is.

    python -m mccl.doctor.metal                 # what the doctor runs
    python -m mccl.doctor.metal --device cpu    # the checks' own logic, on any machine
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TextIO

import torch

from mccl.doctor.metal_checks import CHECKS, Judge, Violated

WORLD = 2
LIMIT_S = 55.0
"""For one mode; the whole proof takes well under a minute on an idle Mac."""

MODES: tuple[tuple[str, dict[str, str], tuple[str, ...]], ...] = (
    ("in place", {}, tuple(CHECKS)),
    ("staged", {"MCCL_UNIFIED_COLLECTIVE": "0"}, ("burst", "views", "backward")),
    ("stream synchronisation", {"MCCL_EVENT_SYNC": "0"}, ("views", "backward")),
)
"""Name, environment and checks of each way through the handoff."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One check on one rank."""

    check: str
    passed: bool
    detail: str
    seconds: float


def rank_main(rank: int, port: int, device: str, checks: list[str]) -> None:
    """Run the checks as one rank; prints one JSON line each."""
    import torch.distributed as dist

    import mccl  # noqa: F401 - registers the backend

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("mccl", rank=rank, world_size=WORLD)
    judge = Judge(rank, WORLD, torch.device(device))
    for name in checks:
        start = time.perf_counter()
        try:
            detail, passed = CHECKS[name](judge), True
        except Violated as wrong:
            detail, passed = str(wrong), False
        outcome = Outcome(name, passed, detail, time.perf_counter() - start)
        print(json.dumps(asdict(outcome)), flush=True)
    dist.destroy_process_group()


def run_mode(device: str, environment: dict[str, str], checks: tuple[str, ...]) -> list[Outcome]:
    """Both ranks of one mode. A rank that crashed fails the check it was in."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mccl.doctor.metal", "--device", device, "--port", str(port)]
    ranks = [
        subprocess.Popen(
            [*command, "--rank", str(rank), "--checks", *checks],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    limit = time.monotonic() + LIMIT_S
    results: list[dict[str, Outcome]] = []
    try:
        for process in ranks:
            results.append(_outcomes(process, checks, limit))
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    worst = []
    for name in checks:
        outcomes = [result[name] for result in results]
        worst.append(next((o for o in outcomes if not o.passed), outcomes[0]))
    return worst


def _outcomes(
    process: subprocess.Popen[str], checks: tuple[str, ...], limit: float
) -> dict[str, Outcome]:
    try:
        out, errors = process.communicate(timeout=max(1.0, limit - time.monotonic()))
        last = errors.strip().rpartition("\n")[2]
        end = f"the rank ended with status {process.returncode}: {last[-300:]}"
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        end = f"no answer within {LIMIT_S:.0f} s"
    found = [Outcome(**json.loads(line)) for line in out.splitlines() if line.startswith("{")]
    by_name = {outcome.check: outcome for outcome in found}
    missing = [name for name in checks if name not in by_name]
    for index, name in enumerate(missing):
        detail = end if index == 0 else "not reached"
        by_name[name] = Outcome(name, False, detail, 0.0)
    return by_name


def machine() -> list[tuple[str, str]]:
    """What a report must say about where it was made."""
    chip = platform.processor() or platform.machine()
    if sys.platform == "darwin":
        named = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"],
            capture_output=True,
            text=True,
            check=False,
        )
        chip = named.stdout.strip() or chip
    return [
        (
            "system",
            f"macOS {platform.mac_ver()[0]}" if platform.mac_ver()[0] else platform.system(),
        ),
        ("chip", chip),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
    ]


def run(device: str = "mps", out: TextIO | None = None) -> int:
    """Run every mode and print the report. Returns an exit code: 0 when all passed."""
    out = sys.stdout if out is None else out
    if device == "mps" and not torch.backends.mps.is_available():
        print(
            "doctor --metal: this machine or this torch has no MPS device; run it on a Mac with "
            "Apple silicon and torch 2.12 or newer",
            file=out,
        )
        return 2
    failed = 0
    for name, environment, checks in MODES:
        print(f"{name}:", file=out)
        for outcome in run_mode(device, environment, checks):
            failed += not outcome.passed
            word = "pass" if outcome.passed else "FAIL"
            title = (CHECKS[outcome.check].__doc__ or "").partition("\n")[0]
            print(f"  {word}  {title:<74} {outcome.seconds:5.1f} s  {outcome.detail}", file=out)
    for key, value in [*machine(), *_reduction()]:
        print(f"{key:>8}: {value}", file=out)
    print("all passed" if not failed else f"{failed} failed", file=out)
    return 1 if failed else 0


def _reduction() -> list[tuple[str, str]]:
    """How fast this CPU adds: the engine's kernel and, on a Mac, Accelerate's vDSP."""
    from mccl.doctor.metal_checks import accelerate_add, native_add

    rows = [("add", f"{_gigabytes(native_add()):.1f} GB/s by mccl")]
    vdsp = accelerate_add()
    if vdsp is not None:
        rows.append(("add", f"{_gigabytes(vdsp):.1f} GB/s by vDSP"))
    return rows


def _gigabytes(add: Callable[[], int]) -> float:
    """Best of several runs of a function that says how many bytes it wrote."""
    best = 0.0
    for _ in range(7):
        start = time.perf_counter()
        nbytes = add()
        best = max(best, nbytes / (time.perf_counter() - start) / 1e9)
    return best


def main() -> int:
    """Entry point of ``python -m mccl.doctor.metal``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="mps")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--port", type=int)
    parser.add_argument("--checks", nargs="+", choices=tuple(CHECKS), default=[])
    options = parser.parse_args()
    if options.rank is None:
        return run(options.device)
    rank_main(options.rank, options.port, options.device, options.checks)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
