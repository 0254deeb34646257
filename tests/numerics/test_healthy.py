"""No false alarm on models with nothing wrong in them."""

from __future__ import annotations

import pytest
import torch

from mccl.numerics import check_model

from .healthy import HEALTHY


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_model_raises_no_alarm(name: str) -> None:
    torch.manual_seed(2)
    make, inputs = HEALTHY[name]
    report = check_model(make(), inputs(), device="cpu")
    assert report.ok, str(report)
    assert report.calls > 0
    assert report.end_to_end is not None
    assert report.end_to_end.ok, str(report)
    assert report.end_to_end.comparable, str(report)


def test_there_are_twenty() -> None:
    assert len(HEALTHY) >= 20
