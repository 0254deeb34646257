"""The demo: its arithmetic, its report, and one short run from end to end."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from mccl import cli
from mccl.data import Images
from mccl.demo.settings import Outcome, Settings, Traffic, bus_bandwidth
from mccl.demo.show import difference, report
from mccl.demo.train import batches
from mccl.demo.watch import union

MANY = Outcome(
    ranks=2,
    data="digits",
    parameters=1_230_000,
    buckets=4,
    steps=105,
    batch=128,
    seconds=10.5,
    losses=[2.0, 1.0, 0.5],
    accuracy=0.975,
    digests=["a" * 64, "a" * 64],
    device="cpu",
    backend="mccl",
    step_seconds=0.1,
    traffic=Traffic(
        collectives=400, payload_bytes=500_000_000, flight=2.0, exposed=0.5, alone=0.01
    ),
)


@pytest.mark.parametrize(
    ("intervals", "length"),
    [([], 0), ([(0, 1), (2, 4)], 3), ([(0, 3), (1, 2)], 3), ([(1, 3), (0, 2)], 3)],
)
def test_union(intervals: list[tuple[float, float]], length: float) -> None:
    assert union(intervals) == length


def test_traffic_figures() -> None:
    assert MANY.traffic.hidden == 0.75
    # nccl-tests: S/t * 2(n-1)/n
    assert bus_bandwidth(1e6, 0.5, 2) == 2e6
    assert bus_bandwidth(1e6, 0.5, 4) == 3e6
    assert Traffic().hidden == 0.0


def test_settings_and_outcome_survive_the_journey(tmp_path: Path) -> None:
    MANY.write(tmp_path / "o")
    assert Outcome.read(tmp_path / "o") == MANY
    settings = Settings(blocks=(1, 2), steps=3)
    settings.write(tmp_path / "s")
    assert Settings.read(tmp_path / "s") == settings


def test_report_says_what_matters() -> None:
    one = dataclasses.replace(MANY, ranks=1, losses=[2.0, 1.1, 0.5], accuracy=0.974)
    text = "\n".join(report(MANY, one))
    assert "97.5%" in text
    assert "97.4%" in text
    assert "75% of that hidden" in text
    assert "10.0 ms, 0.50 GB/s bus bandwidth" in text
    assert "same weights: yes, bit for bit" in text
    assert difference(MANY, one, 10) == pytest.approx(0.1 / 1.1)


def test_report_names_the_rank_that_differs() -> None:
    text = "\n".join(report(dataclasses.replace(MANY, digests=["a" * 64, "b" * 64]), None))
    assert "same weights: NO" in text
    assert "rank 1: bbbb" in text


def test_shares_of_a_batch_make_the_same_global_batch_for_any_number_of_ranks() -> None:
    pixels = torch.arange(64.0).reshape(64, 1, 1, 1)
    labels = torch.arange(64)
    data = Images("n", "s", pixels, labels, pixels, labels, 64)

    def global_batches(ranks: int) -> list[set[int]]:
        shares = [batches(data, ranks, rank, 16, seed=3) for rank in range(ranks)]
        return [{int(x) for share in shares for x in next(share)[1]} for _ in range(6)]

    assert global_batches(1) == global_batches(2) == global_batches(4)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "mccl"])
def test_short_run(backend: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "outcome.json"
    words = ["demo", "--data", "digits", "--steps", "12", "--batch", "32", "--device", "cpu"]
    assert cli.main([*words, "--backend", backend, "--json", str(file)]) == 0
    many, one = json.loads(file.read_text())
    assert (many["ranks"], one["ranks"]) == (2, 1)
    assert many["digests"][0] == many["digests"][1]
    assert many["losses"][0] == pytest.approx(one["losses"][0], rel=1e-5)
    assert many["losses"][2] == pytest.approx(one["losses"][2], rel=1e-2)
    assert many["traffic"]["collectives"] == 7 * many["buckets"]
    # Two ranks: the ring sends what it is given once, and a little more for headers and the loss.
    sent = many["traffic"]["sent_bytes"]
    assert sent is None if backend == "gloo" else 1 <= sent / many["traffic"]["payload_bytes"] < 1.1
    assert "bit for bit" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--batch", "33"], "multiple of --ranks 2"),
        (["--steps", "1"], "at least 10"),
        (["--data", "imagenet"], "expected auto"),
        (["--data", "digits", "--batch", "2000"], "1437 training images"),
    ],
)
def test_bad_options_are_named(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", *words]) == 2
    assert said in capsys.readouterr().err
