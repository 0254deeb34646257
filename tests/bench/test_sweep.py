"""Every collective runs, is checked, and a wrong result or a missed bar fails the command."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mccl.bench import collectives, sweep
from mccl.bench.launch import LocalLauncher
from mccl.bench.record import Case, load
from mccl.bench.sweep import TCP, Cell, Effort, bus_bandwidth, measure_round
from mccl.errors import UsageError

pytestmark = pytest.mark.timeout(90)

QUICK = Effort(budget_s=0.0, min_iterations=2, max_iterations=2)


def test_every_collective_gives_exact_results_on_gloo() -> None:
    cells = [
        Cell(bench.name, 5000, dtype, "sum", in_place)
        for bench in collectives.COLLECTIVES.values()
        for in_place in bench.in_place
        for dtype in ("float32", "int64")
    ]
    cases = measure_round(LocalLauncher(), cells, ["gloo", TCP], 3, QUICK, timeout=60)
    assert cases is not None
    assert {case.facts["wrong"] for case in cases} == {0.0}
    assert len([case for case in cases if case.series == "gloo"]) == len(cells)
    assert all(len(case.samples) == 2 and min(case.samples) > 0 for case in cases)


def test_wrong_elements_are_counted_by_every_collective() -> None:
    for bench in collectives.COLLECTIVES.values():
        shape = collectives.Shape(
            0, 3, 3000, torch.float32, "sum", bench.in_place[0], torch.device("cpu")
        )
        buffers = bench.allocate(shape)
        buffers.receive.fill_(-1)
        assert bench.wrong(buffers, shape) == buffers.receive.numel(), bench.name


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    factors = {name: bench.factor(4) for name, bench in collectives.COLLECTIVES.items()}
    assert factors["all_reduce"] == 1.5
    assert factors["all_gather"] == factors["reduce_scatter"] == factors["all_to_all"] == 0.75
    assert factors["broadcast"] == factors["reduce"] == factors["sendrecv"] == 1.0
    case = Case("x", {"nbytes": 1000, "factor": 1.5}, [[2.0]])
    assert bus_bandwidth(case) == 750.0


def test_iterations_follow_the_budget_within_bounds() -> None:
    effort = Effort(budget_s=1.0, min_iterations=5, max_iterations=100)
    assert [effort.iterations(s) for s in (1.0, 0.1, 1e-6)] == [5, 10, 100]


def test_command_writes_raw_samples_and_passes_its_gates(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        command(
            "allreduce",
            "--backend",
            "gloo",
            "--sizes",
            "4K,64K",
            "--rounds",
            "2",
            "--budget",
            "0",
            "--min-busbw",
            "0.000001",
            "--out",
            str(tmp_path),
        )
        == 0
    )
    record = load(next(tmp_path.glob("all_reduce-*.json")))
    assert [len(case.rounds) for case in record.cases] == [2, 2, 2]
    assert {case.series for case in record.cases} == {"gloo", TCP}
    printed = capsys.readouterr().out
    for expected in ("busbw", "4096", "gloo/tcp"):
        assert expected in printed


def test_a_bar_that_is_missed_fails(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "allreduce",
        "--backend",
        "gloo",
        "--sizes",
        "1M",
        "--rounds",
        "1",
        "--budget",
        "0",
        "--out",
        str(tmp_path),
    ]
    assert command(*words, "--min-busbw", "9999") == 1
    assert "below 9999" in capsys.readouterr().out
    assert command(*words, "--min-goodput", "1000") == 1
    assert "of goodput" in capsys.readouterr().out


def test_wrong_elements_fail_the_command(
    command: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def one_wrong(*args: Any, **kwargs: Any) -> list[Case]:
        labels = {
            "ranks": 2,
            "nbytes": 8,
            "factor": 1.0,
            "collective": "all_reduce",
            "count": 2,
            "requested": 8,
            "in_place": True,
            "dtype": "float32",
            "redop": "sum",
        }
        return [Case("gloo", dict(labels), [[1.0]], facts={"wrong": 1.0})]

    monkeypatch.setattr("mccl.bench.single.measure_round", one_wrong)
    assert (
        command(
            "allreduce",
            "--backend",
            "gloo",
            "--sizes",
            "8",
            "--rounds",
            "1",
            "--out",
            str(tmp_path),
        )
        == 1
    )
    assert "1 wrong elements" in capsys.readouterr().out


def test_ranks_that_measured_different_things_are_noticed() -> None:
    ranks = [sweep.Measured("a", 0, [1.0] * n, 0.0, 0, 4) for n in (1, 2)]
    with pytest.raises(UsageError, match="different"):
        sweep._combine(ranks, [Cell("all_reduce", 16)], 2)


def test_unknown_names_are_refused_in_one_line(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("allreduce", "--dtype", "float8", "--out", str(tmp_path)) == 2
    error = capsys.readouterr().err
    assert "float8" in error
    assert error.count("\n") == 1
    with pytest.raises(UsageError, match="all_reduce"):
        collectives.find("allreduce2")
