"""Training benchmarks at toy size: gradients really averaged, buckets and curves reported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from mccl.bench import converge, train
from mccl.bench.launch import LocalLauncher, RankContext
from mccl.bench.record import load

pytestmark = pytest.mark.timeout(110)


def gradients(context: RankContext, options: dict[str, Any]) -> list[bool]:
    group = context.group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 7))
    ddp = DistributedDataParallel(model, process_group=group)
    images = torch.randn(8, 40, generator=torch.Generator().manual_seed(context.rank))
    ddp(images).square().mean().backward()
    averaged = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(images).square().mean().backward()
    reducer = train.StagedReducer(list(model.parameters()), group, bucket_bytes=800)
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    reducer.reduce()
    staged = [p.grad for p in model.parameters() if p.grad is not None]
    differs = any(not torch.equal(a, b) for a, b in zip(before, staged, strict=True))
    same = all(torch.allclose(a, b, atol=1e-6) for a, b in zip(averaged, staged, strict=True))
    return [len(reducer._buckets) > 1, differs, same]


def test_the_hand_staged_reducer_averages_as_ddp_does() -> None:
    assert LocalLauncher().run(gradients, {}, 2, 60) == [[True, True, True]] * 2


def test_the_papers_model_has_its_size() -> None:
    with torch.device("meta"):
        model = train.build_model({"depth": None, "width": None, "heads": None})
    parameters = sum(p.numel() for p in model.parameters())
    assert parameters / 1e6 == pytest.approx(113.5, abs=0.1)
    assert parameters * 4 / 1e6 == pytest.approx(454, abs=1)


def test_train_reports_steps_and_buckets(command: Callable[..., int], tmp_path: Path) -> None:
    assert (
        command(
            "train",
            "--backend",
            "gloo",
            "--depth",
            "1",
            "--width",
            "32",
            "--heads",
            "2",
            "--batch",
            "2",
            "--steps",
            "1",
            "--warmup",
            "1",
            "--bucket-mb",
            "0.02",
            "--out",
            str(tmp_path),
        )
        == 0
    )
    record = load(next(tmp_path.glob("train-*.json")))
    assert record.one("gloo", ranks=2) is not None
    assert record.one(train.STAGED, ranks=2) is not None
    single = record.one(train.COMPUTE, ranks=1)
    assert single is not None
    assert train.efficiency(record, single) == 1.0
    assert sum(record.settings["buckets"]) == 4 * record.settings["parameters"]
    assert len(record.settings["buckets"]) > 1


def test_batches_of_a_step_are_disjoint_and_cover_the_deck() -> None:
    seen: list[int] = []
    for step in range(2):
        for rank in range(3):
            seen += converge.batch_indices(step, rank, 3, 4, 24, seed=1).tolist()
    assert sorted(seen) == list(range(24))
    again = converge.batch_indices(0, 1, 3, 4, 24, seed=1)
    assert again.tolist() == seen[4:8]
    assert converge.batch_indices(2, 0, 3, 4, 24, seed=1).tolist() != seen[:4], "reshuffled"


def test_the_rate_is_the_papers() -> None:
    assert converge.learning_rate(1) == 4e-4
    assert converge.learning_rate(24) == pytest.approx(4e-4 * 24**0.45)


def test_converge_reports_curves(command: Callable[..., int], tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="the digits data set ships in scikit-learn")
    assert (
        command(
            "converge",
            "--backend",
            "gloo",
            "--size",
            "demo",
            "--data",
            "digits",
            "--steps",
            "4",
            "--evaluate-every",
            "2",
            "--batch",
            "8",
            "--ranks",
            "1,2",
            "--validation-images",
            "50",
            "--out",
            str(tmp_path),
        )
        == 0
    )
    record = load(next(tmp_path.glob("converge-*.json")))
    for world in (1, 2):
        steps = record.one("gloo", ranks=world, what="step")
        loss = record.one("gloo", ranks=world, what="validation_loss")
        assert steps is not None
        assert loss is not None
        assert steps.samples == [2, 4]
        assert loss.facts["same_weights"] == 1.0
