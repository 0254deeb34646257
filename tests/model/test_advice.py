"""``mccl.suggest_bucket_cap_mb``."""

from __future__ import annotations

import pytest
import torch

import mccl
from mccl.errors import UsageError

VIT_BYTES = 454_000_000


def test_grows_with_the_world() -> None:
    caps = [mccl.suggest_bucket_cap_mb(VIT_BYTES, world) for world in (2, 24, 100, 200)]
    assert caps[0] == 8
    assert caps[1] == 10
    assert 30 < caps[2] < 50
    assert caps[3] == pytest.approx(2 * caps[2], abs=2)


def test_a_faster_link_needs_larger_buckets() -> None:
    slow, fast = (mccl.suggest_bucket_cap_mb(VIT_BYTES, 24, link) for link in ("10G", 25e9))
    assert fast == pytest.approx(2.5 * slow, abs=2)


def test_never_more_than_the_model() -> None:
    model = torch.nn.Linear(512, 1024, bias=False)
    assert mccl.suggest_bucket_cap_mb(model, 200) == 2


def test_refuses_nonsense() -> None:
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    for arguments in ((frozen, 4), (0, 4), (100, 0), (100, 4, "fast"), (100, 4, 0.0)):
        with pytest.raises(UsageError):
            mccl.suggest_bucket_cap_mb(*arguments)
