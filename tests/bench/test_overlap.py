"""Overlap: the arithmetic of hiding, the schedules, and a run of the four ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mccl.bench import overlap
from mccl.bench.accelerators import Simulated, accelerator
from mccl.bench.record import Case, Record, load

pytestmark = pytest.mark.timeout(90)


def record(**seconds: float) -> Record:
    cases = [Case("x", {"way": way, "ranks": 2}, [[value]]) for way, value in seconds.items()]
    return Record("overlap", {"series": ["x"]}, cases)


def test_hidden_share_and_overhead_of_the_paper() -> None:
    paper = record(compute=1.09, communication=0.74, overlapped=1.135, serialized=1.83)
    assert overlap.hidden_share(paper, "x") == pytest.approx(0.939, abs=1e-3)
    assert overlap.step_overhead(paper, "x") == pytest.approx(0.041, abs=1e-3)


def test_schedules_carry_the_same_bytes() -> None:
    even = overlap.schedule("even", 18, 25 << 20)
    tapered = overlap.schedule("tapered", 18, 25 << 20)
    assert even.total == tapered.total == 18 * (25 << 20)
    assert even.bound == pytest.approx(1 - 1 / 18)
    assert tapered.bound > 0.996
    assert all(size % 4 == 0 and size > 0 for size in tapered.sizes)
    assert sum(tapered.share) == pytest.approx(1.0)


def test_a_simulated_bucket_is_ready_at_its_moment_even_if_asked_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, slept = [100.0], []
    monkeypatch.setattr("mccl.bench.accelerators.time.perf_counter", lambda: now[0])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("mccl.bench.accelerators.time.sleep", sleep)
    device = Simulated()
    device.calibrate(10.0)
    device.begin()
    device.produce(0, 0.5)
    assert slept == [5.0]
    now[0] += 3.0  # the host was busy; the device was not
    device.produce(1, 0.5)
    assert slept == [5.0, 2.0]
    now[0] += 9.0
    device.produce(2, 0.0)
    assert slept == [5.0, 2.0], "late already: it must not sleep"


def test_an_accelerator_that_is_not_there_is_named() -> None:
    import torch

    if torch.backends.mps.is_available():
        pytest.skip("this machine has the device whose absence is tested")
    with pytest.raises(ValueError, match="mps"):
        accelerator("mps")


def test_the_command_times_four_ways_and_applies_its_gate(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "overlap",
        "--backend",
        "gloo",
        "--buckets",
        "3",
        "--bucket-size",
        "64K",
        "--compute",
        "0.03",
        "--steps",
        "2",
        "--out",
        str(tmp_path),
    ]
    assert command(*words) == 0
    found = load(next(tmp_path.glob("overlap-*.json")))
    assert {case.labels["way"] for case in found.cases} == set(overlap.WAYS)
    compute = found.one("gloo", way="compute", ranks=2)
    serialized = found.one("gloo", way="serialized", ranks=2)
    assert compute is not None
    assert serialized is not None
    assert min(compute.samples) >= 0.03
    assert min(serialized.samples) >= 0.03
    assert command(*words, "--min-hidden", "101") == 1
    assert "101.0% asked for" in capsys.readouterr().out
