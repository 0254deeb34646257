"""Overlap in a training step, and tokens a second."""

from __future__ import annotations

import pytest

from mccl.model import Network, Workload, step
from mccl.model.inference import pipeline, replicated, tensor_parallel

WORK = Workload("made", compute=3.0, gradient=400, samples=10)


def test_only_the_last_bucket_shows_where_the_others_have_time() -> None:
    found = step(WORK, [0.1] * 4)
    assert found.exposed == pytest.approx(0.1)
    assert found.hidden == pytest.approx(0.75)
    assert found.efficiency == pytest.approx(3.0 / 3.1)


def test_a_busy_wire_delays_later_buckets() -> None:
    """Ready at 1.5, 2, 2.5 and 3 s; each takes 1 s: the wire is done at 5.5 s."""
    assert step(WORK, [1.0] * 4).exposed == pytest.approx(2.5)


def test_accumulation_exchanges_less_often() -> None:
    once, four = step(WORK, [1.0] * 4), step(WORK, [1.0] * 4, accumulate=4)
    assert four.exposed == once.exposed
    assert four.efficiency > once.efficiency


def test_no_communication_on_one_host() -> None:
    found = step(WORK, [])
    assert found.exposed == 0
    assert found.hidden == 1
    assert found.efficiency == 1


def test_buckets_hold_all_gradients() -> None:
    assert WORK.buckets(150) == [134, 134, 134]
    assert WORK.buckets(1000) == [400]


@pytest.mark.parametrize("wrong", [{"compute": 0.0}, {"gradient": 0}, {"backward": 1.5}])
def test_workloads_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="got"):
        Workload(**({"name": "x", "compute": 1.0, "gradient": 4} | wrong))  # type: ignore[arg-type]


def test_tensor_parallelism_pays_latency_in_every_layer() -> None:
    quick, slow = (
        tensor_parallel(Network(8, hop=hop), 8, 32, hidden=4096) for hop in (1e-5, 306e-6)
    )
    assert slow.per_sequence < 26
    assert quick.per_sequence > 10 * slow.per_sequence


def test_sequences_fill_a_pipeline() -> None:
    network = Network(8)
    one, many, more = (
        pipeline(network, 8, hidden=4096, compute=0.08, sequences=n) for n in (1, 8, 100)
    )
    assert one.per_sequence == pytest.approx(1 / (0.08 + 8 * 306e-6), rel=0.01)
    assert many.total == pytest.approx(8 * one.total, rel=0.01)
    assert more.total == pytest.approx(8 / 0.08, rel=0.01)


def test_replicas_scale() -> None:
    assert replicated(8, compute=0.1).total == pytest.approx(80)
