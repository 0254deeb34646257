"""The fit finds the parameters that made the points, and says what points cannot tell."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mccl.model import PAPER, Hockney, Point, fit, read
from mccl.model.fit import predict

MIB = 1 << 20


def measured(
    model: Hockney,
    sizes: list[int],
    worlds: list[int],
    noise: float = 0.0,
    kind: str = "all_reduce",
) -> list[Point]:
    """Points as ``model`` makes them, with relative normal noise."""
    random = np.random.default_rng(1)
    points = []
    for world in worlds:
        for size in sizes:
            small = kind == "all_reduce" and size <= 256 << 10
            point = Point(kind, world, size, 1.0, "recursive_doubling" if small else "ring")
            error = 1 + noise * float(random.standard_normal())
            points.append(replace(point, seconds=predict(model, point) * error))
    return points


def test_finds_the_papers_parameters_through_noise() -> None:
    sizes = [1 << 10, 64 << 10, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB]
    found = fit(measured(PAPER, sizes, [4, 8, 12, 16, 24], noise=0.01))
    for value, true, width in (
        (found.hockney.alpha, PAPER.alpha, found.interval[0]),
        (found.hockney.beta, PAPER.beta, found.interval[1]),
    ):
        assert value == pytest.approx(true, rel=0.01)
        assert abs(value - true) < 2 * width < 0.02 * true
    assert found.worst < 0.04
    assert len(found.residuals) == 35


def test_finds_the_cost_of_adding() -> None:
    true = Hockney(50e-6, 1 / 1.2e9, 1 / 0.8e9)
    points = [
        point
        for kind in ("all_reduce", "reduce_scatter", "all_gather")
        for point in measured(true, [MIB // 4, 4 * MIB, 64 * MIB], [2, 4, 8], kind=kind)
    ]
    found = fit(points)
    assert found.hockney.gamma == pytest.approx(true.gamma, rel=1e-3)
    assert found.hockney.beta == pytest.approx(true.beta, rel=1e-3)
    assert found.warnings == ()


def test_large_sizes_do_not_determine_latency() -> None:
    found = fit(measured(PAPER, [64 * MIB, 256 * MIB], [4, 8], noise=0.01))
    assert math.isinf(found.interval[0])
    assert found.interval[1] < 0.1 * PAPER.beta
    assert any("alpha is not determined" in text for text in found.warnings)


def test_one_size_does_not_tell_latency_from_bandwidth() -> None:
    found = fit(measured(PAPER, [1 << 10], [4, 8, 16], noise=0.01))
    assert math.isinf(found.interval[0])
    assert found.warnings


def test_a_single_point_has_no_error_estimate() -> None:
    found = fit(measured(PAPER, [MIB], [8]))
    assert all(math.isinf(width) for width in found.interval)
    assert found.warnings


def test_no_points() -> None:
    with pytest.raises(ValueError, match="two or more ranks"):
        fit([Point("all_reduce", 1, MIB, 1.0)])


def test_reads_records_of_the_benchmarks(tmp_path: Path) -> None:
    def case(series: str, collective: str, nbytes: int) -> dict[str, object]:
        labels = {"collective": collective, "ranks": 4, "nbytes": nbytes}
        return {"series": series, "labels": labels, "rounds": [[1.0, 3.0], [2.0]], "unit": "s"}

    good = tmp_path / "good.json"
    cases = [
        case("mccl", "all_reduce", 1024),
        case("mccl", "all_reduce", MIB),
        case("mccl", "broadcast", MIB),
        case("gloo", "all_reduce", MIB),
    ]
    good.write_text(json.dumps({"schema": "mccl-bench/1", "cases": cases}))
    assert read([good]) == [
        Point("all_reduce", 4, 1024, 2.0, "recursive_doubling"),
        Point("all_reduce", 4, MIB, 2.0, "ring"),
    ]
    other = tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(ValueError, match="no record of mccl bench"):
        read([other])
