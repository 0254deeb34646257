"""Peers in processes of their own: reported when missing, ended when one fails."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mccl.bench import external, peers
from mccl.bench.external import OPENMPI_TCP, ExternalPeer, Process
from mccl.bench.launch import RankFailedError
from mccl.bench.sweep import Cell, Effort

pytestmark = pytest.mark.timeout(90)

QUICK = Effort(budget_s=0.0, min_iterations=2, max_iterations=2)


@pytest.mark.skipif(OPENMPI_TCP.missing() is not None, reason=str(OPENMPI_TCP.missing()))
def test_openmpi_measures_every_cell_it_can() -> None:
    cells = [
        Cell(name, 6000)
        for name in ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
    ]
    cases = OPENMPI_TCP.round(cells, 2, QUICK, 60)
    assert [case.labels["collective"] for case in cases] == [c.collective for c in cells[:4]]
    assert {case.facts["wrong"] for case in cases} == {0.0}
    assert all(len(case.samples) == 2 for case in cases)


def peer(*programs: str) -> ExternalPeer:
    def start(job: str, world: int, folder: Path) -> list[Process]:
        return [([sys.executable, "-c", program], {}) for program in programs]

    return ExternalPeer("pretend", "a test", ("all_reduce",), lambda: None, start)


def test_one_process_that_fails_ends_the_round_and_is_quoted() -> None:
    waits = "import time; time.sleep(60)"
    with pytest.raises(RankFailedError, match="no such thing"):
        peer(waits, "raise SystemExit('no such thing')").round(
            [Cell("all_reduce", 8)], 2, QUICK, 50
        )


def test_a_round_that_hangs_is_ended() -> None:
    with pytest.raises(RankFailedError, match="no result within 1 s"):
        peer("import time; time.sleep(60)").round([Cell("all_reduce", 8)], 1, QUICK, 1)


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external.shutil, "which", lambda name: None)
    monkeypatch.setattr(external.importlib.util, "find_spec", lambda name: None)
    survey = peers.survey()
    assert survey["gloo"] == "runs"
    for name in ("openmpi-tcp", "mlx-ring", "pccl", "horovod"):
        assert "not installed" in survey[name]
