"""Latency, bandwidth and addition cost from measurements: a least-squares Hockney fit.

Input are the JSON records of ``mccl bench`` (its ``SCHEMA`` ``mccl-bench/1``), of which only
labels and samples are read. Every collective's time is piecewise linear in (alpha, beta, gamma)
(``hockney``): on each side of "which is larger, a hop or a piece" it is a sum of so many of each.
So the fit alternates: given parameters, decide the side of each point and solve the weighted
linear problem; again until no point changes sides. Weights are 1/time, so residuals are relative
and a millisecond matters as much to a small message as a second to a large one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from mccl.model.hockney import Hockney
from mccl.plans.choose import SMALL_MESSAGE_BYTES

SCHEMA = "mccl-bench/1"
PARAMETERS = ("alpha", "beta", "gamma")
_COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather")
_ROUNDS = 50
_NEGLIGIBLE = 0.02
"""Share of a point's time below which a parameter cannot be told from the noise there."""

_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t for 95%, two-sided, by degrees of freedom from 1; then about 2."""

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Point:
    """``collective`` of ``nbytes`` (nccl-tests' size) on ``world`` ranks took ``seconds``."""

    collective: str
    world: int
    nbytes: int
    seconds: float
    algorithm: str = "ring"


@dataclass(frozen=True, slots=True)
class Fit:
    """What the points say.

    ``interval``: half-width of the 95% confidence interval of each parameter, infinite where the
    points do not determine it. ``residuals``: measured / predicted - 1, one a point, in order.
    ``warnings``: what the points cannot tell, in words.
    """

    hockney: Hockney
    interval: tuple[float, float, float]
    residuals: tuple[float, ...]
    warnings: tuple[str, ...]

    @property
    def worst(self) -> float:
        """Largest relative residual."""
        return max(abs(r) for r in self.residuals)


def read(
    paths: Iterable[Path], series: str = "mccl", small_threshold: int = SMALL_MESSAGE_BYTES
) -> list[Point]:
    """The points of ``series`` in records of ``mccl bench``: medians of all samples.

    All-reduces of at most ``small_threshold`` bytes ran recursive doubling. ValueError when a
    file is no such record.
    """
    points = []
    for path in paths:
        record = json.loads(path.read_text())
        if not isinstance(record, dict) or record.get("schema") != SCHEMA:
            raise ValueError(f"{path} is no record of mccl bench (expected schema {SCHEMA!r})")
        for case in record["cases"]:
            labels = case["labels"]
            samples = [sample for rounds in case["rounds"] for sample in rounds]
            usable = case["series"] == series and labels.get("collective") in _COLLECTIVES
            if not usable or not samples or case.get("unit", "s") != "s":
                continue
            small = labels["collective"] == "all_reduce" and labels["nbytes"] <= small_threshold
            points.append(
                Point(
                    labels["collective"],
                    int(labels["ranks"]),
                    int(labels["nbytes"]),
                    median(samples),
                    "recursive_doubling" if small else "ring",
                )
            )
    return points


def predict(model: Hockney, point: Point) -> float:
    """Seconds that ``model`` gives for ``point``."""
    if point.algorithm == "recursive_doubling":
        return model.recursive_doubling(point.world, point.nbytes)
    if point.collective == "all_reduce":
        return model.ring(point.world, point.nbytes)
    if point.collective == "reduce_scatter":
        return model.reduce_scatter(point.world, point.nbytes)
    return model.all_gather(point.world, point.nbytes)


def fit(points: Sequence[Point]) -> Fit:
    """Alpha, beta and gamma that explain ``points`` best.

    ValueError when there are none on two or more ranks.
    """
    points = [p for p in points if p.world > 1 and p.seconds > 0 and p.nbytes > 0]
    if not points:
        raise ValueError("no measurement on two or more ranks: run mccl bench all_reduce first")
    times = np.array([p.seconds for p in points])
    solutions = []
    for start in _starts(points):
        found = _solve(points, times, start)
        relative = _relative(points, times, _model(found))
        solutions.append((float(relative @ relative), found))
    error, found = min(solutions, key=lambda solution: solution[0])
    model = _model(found)
    relative = _relative(points, times, model)
    slopes = _slopes(points, model) / times[:, None]
    rivals = [other for e, other in solutions if e <= error * 1.02 + 1e-9 * len(points)]
    if not all(np.allclose(other, found, rtol=0.2, atol=1e-15) for other in rivals):
        interval, warnings = (math.inf, math.inf, math.inf), [_APART]
    else:
        interval, warnings = _confidence(slopes, found, relative)
    residuals = tuple(float(r) for r in 1 / (1 - relative) - 1)
    return Fit(model, interval, residuals, tuple(warnings))


def _model(found: Vector) -> Hockney:
    alpha, beta, gamma = (float(value) for value in found)
    return Hockney(alpha, max(beta, 1e-15), gamma)


def _relative(points: Sequence[Point], times: Vector, model: Hockney) -> Vector:
    return np.asarray(1 - np.array([predict(model, p) for p in points]) / times)


def _slopes(points: Sequence[Point], model: Hockney) -> Vector:
    """Seconds of each point per unit of each parameter, near ``model``: the forms are linear
    there, so a step to either side is exact unless it crosses to another side."""
    values = np.array([model.alpha, model.beta, model.gamma])
    scale = np.where(values > 0, values, model.beta)
    rows = np.empty((len(points), 3))
    for column in range(3):
        step = scale[column] * 1e-6
        near = values.copy()
        near[column] += step
        moved = Hockney(*near)
        rows[:, column] = [(predict(moved, p) - predict(model, p)) / step for p in points]
    return rows


def _starts(points: Sequence[Point]) -> list[Vector]:
    """Parameters to begin from: all latency, all bandwidth, and a reduction-bound guess."""
    alpha = min(p.seconds / (2 * p.world) for p in points)
    beta = min(p.seconds / (2 * p.nbytes) for p in points)
    return [
        np.array([hop, byte, gamma * byte])
        for hop, byte in ((alpha, beta), (alpha, beta / 1000), (alpha / 10, beta), (0.0, beta))
        for gamma in (0.0, 2.0)
    ]


def _solve(points: Sequence[Point], times: Vector, start: Vector) -> Vector:
    found = start
    for _ in range(_ROUNDS):
        model = _model(found)
        slopes = _slopes(points, model) / times[:, None]
        solved = _nonnegative(slopes, np.ones(len(points)))
        # A parameter without a say keeps its value: the next round may be on another side.
        silent = ~slopes.any(axis=0)
        solved[silent] = np.minimum(found[silent], solved[silent].max(initial=0.0))
        if np.allclose(solved, found, rtol=1e-6, atol=0):
            return solved
        found = solved
    return found


def _nonnegative(matrix: Vector, target: Vector) -> Vector:
    """Least squares with parameters of at least 0: of the few subsets of three columns, the
    best whose solution is not negative."""
    scale = np.linalg.norm(matrix, axis=0)
    best, solution = math.inf, np.zeros(matrix.shape[1])
    for chosen in range(1, 1 << matrix.shape[1]):
        columns = [c for c in range(matrix.shape[1]) if chosen >> c & 1 and scale[c] > 0]
        if not columns:
            continue
        part, *_ = np.linalg.lstsq(matrix[:, columns] / scale[columns], target, rcond=None)
        if (part < 0).any():
            continue
        error = float(np.sum((matrix[:, columns] @ (part / scale[columns]) - target) ** 2))
        if error < best - 1e-12:
            best, solution = error, np.zeros(matrix.shape[1])
            solution[columns] = part / scale[columns]
    return solution


def _confidence(
    slopes: Vector, found: Vector, relative: Vector
) -> tuple[tuple[float, float, float], list[str]]:
    weight = np.abs(slopes * found).max(axis=0)
    told = [c for c in range(3) if weight[c] > _NEGLIGIBLE]
    warnings = [_ADVICE[PARAMETERS[c]] for c in (0, 1) if c not in told]
    if 2 not in told:
        warnings.append(_ADVICE["gamma"])
    interval = [math.inf] * 3
    free = len(relative) - len(told)
    if free < 1:
        warnings.append(
            f"{len(relative)} measurements for {len(told)} parameters leave no room for an error "
            "estimate: measure more sizes or world sizes"
        )
        return (interval[0], interval[1], interval[2]), warnings
    scaled = slopes[:, told] * found[told]
    if told and np.linalg.cond(scaled) > 1e4:
        warnings.append(_APART)
        return (interval[0], interval[1], interval[2]), warnings
    variance = float(relative @ relative) / free
    spread = np.sqrt(np.diag(np.linalg.inv(scaled.T @ scaled)) * variance)
    factor = _T95[free - 1] if free <= len(_T95) else 2.0
    for column, width in zip(told, spread, strict=True):
        interval[column] = float(factor * width * found[column])
    return (interval[0], interval[1], interval[2]), warnings


_APART = (
    "the measurements cannot tell latency, bandwidth and addition apart: several choices explain "
    "them as well; measure small (up to 256 KB) and large (16 MB and more) sizes"
)

_ADVICE = {
    "alpha": "alpha is not determined: no measurement is bound by latency; add small sizes or "
    "more ranks",
    "beta": "beta is not determined: no measurement is bound by bandwidth; add sizes of 16 MB "
    "or more",
    "gamma": "gamma is not determined: adding hides behind the network at every point measured, "
    "so it costs nothing there",
}
