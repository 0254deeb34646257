"""Stress: the same work on all ranks, every result checked, a wrong one fails the run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from mccl.bench import collectives, stress
from mccl.bench.launch import RankContext
from mccl.bench.record import load

pytestmark = pytest.mark.timeout(90)


def test_ranks_draw_alike() -> None:
    store = dist.HashStore()
    drawn = []
    for rank in range(2):
        context = RankContext(rank, 2, "127.0.0.1", store)
        choice = random.Random(5)
        drawn.append([stress.draw(choice, [4, 1000], context) for _ in range(200)])
    for (bench, mine), (other, theirs) in zip(*drawn, strict=True):
        assert bench is other
        assert (mine.count, mine.dtype, mine.redop, mine.in_place, mine.seed) == (
            theirs.count,
            theirs.dtype,
            theirs.redop,
            theirs.in_place,
            theirs.seed,
        )
    assert len({bench.name for bench, _ in drawn[0]}) == len(collectives.COLLECTIVES)


def test_a_short_run_is_exact_and_recorded(command: Callable[..., int], tmp_path: Path) -> None:
    log = tmp_path / "soak.jsonl"
    few = ["--seconds", "0", "--burst", "4", "--sizes", "4,1000"]
    where = ["--out", str(tmp_path), "--log", str(log)]
    assert command("stress", "--backend", "gloo", "--ranks", "2", *few, *where) == 0
    record = load(next(tmp_path.glob("stress-*.json")))
    assert len(record.find(what="resident_bytes")) == 2
    for case in record.find(what="descriptors"):
        assert case.facts["operations"] >= 8
        assert case.facts["wrong"] == 0
        assert min(case.samples) > 2
    lines = [json.loads(text) for text in log.read_text().splitlines()]
    assert {line["rank"] for line in lines} == {0, 1}
    for line in lines:
        assert line["operations"] >= 8
        assert line["wrong"] == 0
        assert line["resident_bytes"] > 2**20


def test_a_wrong_element_is_tallied_with_its_operation() -> None:
    bench = collectives.COLLECTIVES["all_reduce"]
    broken = collectives.CollectiveBench(
        **{**vars(bench), "call": lambda buffers, shape, group, async_op: None}
    )
    shape = collectives.Shape(0, 2, 10, torch.float32, "sum", True, torch.device("cpu"))
    tally = stress.Tally()
    stress._burst([(broken, shape)], None, tally)  # type: ignore[arg-type]
    assert tally.operations == 1
    assert tally.wrong > 0
    assert "all_reduce" in tally.wrong_in[0]
