"""The shipped Metal code over a stand-in Metal: exact over many seeds, and every mutant caught.

``STANDIN_SEEDS`` sets the seeds of the long run (1000 when the slow tests are run).
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .pair import socket_pairs
from .standin import build

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the stand-in replaces Metal on Linux"),
    pytest.mark.timeout(300),
]

SCRIPT = Path(__file__).parent / "metal_rank.py"
LONG_RUN = int(os.environ.get("STANDIN_SEEDS", "100"))


def start(rank: int, ends: list[socket.socket], arguments: list[str]) -> subprocess.Popen[str]:
    fds = [end.fileno() for end in ends]
    source = Path(__file__).resolve().parents[2] / "src"
    path = os.pathsep.join([str(source), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(SCRIPT), "--rank", str(rank), "--fds", ",".join(map(str, fds))]
    return subprocess.Popen(
        [*command, *arguments],
        pass_fds=fds,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_pair(*arguments: str, limit: float = 240) -> list[tuple[int, str, str]]:
    """Run both ranks; their exit status, output and errors."""
    build()
    ends = socket_pairs()
    processes = [start(rank, ends[rank], list(arguments)) for rank in (0, 1)]
    for end in (*ends[0], *ends[1]):
        end.close()
    try:
        outputs = [process.communicate(timeout=limit) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(p.returncode, *o) for p, o in zip(processes, outputs, strict=True)]


def counts(results: list[tuple[int, str, str]]) -> list[dict[str, Any]]:
    # All ranks at once: the first that fails is often only the one that lost its peer.
    said = [
        f"rank {rank} ended with {status}, printed {output[-500:]!r}: {errors[-3000:]}"
        for rank, (status, output, errors) in enumerate(results)
    ]
    assert all(status == 0 for status, _, _ in results), "\n".join(said)
    return [json.loads(output.splitlines()[-1]) for _, output, _ in results]


def check_clean(totals: list[dict[str, Any]], seeds: int) -> None:
    for total in totals:
        assert total["seeds"] == seeds
        assert total["mismatches"] == 0, total
        assert total["checked"] > 0
        left = {name: total[name] for name in ("lanes_in_use", "live_events", "live_buffers")}
        assert not any(left.values()), f"left behind: {left}"


@pytest.mark.parametrize("scenario", ["burst", "backward"])
@pytest.mark.parametrize("mode", [[], ["--staged"], ["--no-events"]], ids=["plain", "staged", "no"])
def test_exact_without_host_synchronisation(scenario: str, mode: list[str]) -> None:
    operations = "96" if "--no-events" in mode else "640"
    totals = counts(
        run_pair("--scenario", scenario, "--seeds", "5", "--operations", operations, *mode)
    )
    check_clean(totals, 5)
    if "--no-events" not in mode:
        assert all(total["waits_that_blocked"] > 0 for total in totals), "no wait was ever early"


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", ["burst", "backward"])
def test_exact_over_many_seeds(scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    results = run_pair("--scenario", scenario, "--seeds", str(LONG_RUN), limit=3500)
    totals = counts(results)
    check_clean(totals, LONG_RUN)
    checked = sum(total["checked"] for total in totals)
    blocked = sum(total["waits_that_blocked"] for total in totals)
    with capsys.disabled():
        print(
            f"\n{scenario}: {totals[0]['seeds']} seeds passed, {totals[0]['operations']} operations"
            f" a rank, {checked} elements checked on the GPU, {blocked} GPU waits blocked, 0 wrong"
        )


@pytest.mark.parametrize(
    ("mutant", "mode", "abort"),
    [
        ("drop_produced", [], None),
        ("drop_consumed", [], None),
        ("release_early", [], None),
        ("one_temporary", ["--staged"], None),
        ("second_thread", [], "from a second thread (O3)"),
    ],
)
def test_every_broken_rule_is_caught(mutant: str, mode: list[str], abort: str | None) -> None:
    results = run_pair("--mutant", mutant, "--seeds", "5", *mode)
    if abort is not None:
        assert all(status != 0 and abort in errors for status, _, errors in results), results
        return
    totals = [json.loads(output.splitlines()[-1]) for status, output, _ in results if status == 0]
    assert any(total["mismatches"] > 0 for total in totals), f"{mutant} went unnoticed: {results}"
