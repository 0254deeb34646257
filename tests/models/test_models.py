"""The paper's models: as many parameters, bytes and buckets as it states (§5.2, §5.3)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from mccl.models import GroupNormResNet, VisionTransformer

BUCKET = 25 << 20


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_resnet_of_the_paper() -> None:
    with torch.device("meta"):
        model = GroupNormResNet.paper()
        assert model(torch.empty(2, 3, 32, 32)).shape == (2, 10)
    count = parameters(model)
    assert count / 1e6 == pytest.approx(31.6, abs=0.05)
    assert round(4 * count / 1e6) == 126
    assert math.ceil(4 * count / BUCKET) == 5
    assert not [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]


def test_vit_of_the_paper() -> None:
    with torch.device("meta"):
        model = VisionTransformer.paper()
        assert model(torch.empty(2, 3, 32, 32)).shape == (2, 10)
    count = parameters(model)
    assert count / 1e6 == pytest.approx(113.5, abs=0.1)
    assert round(4 * count / 1e6) == 454
    assert math.ceil(4 * count / BUCKET) == 18


def test_vit_that_does_not_fit_its_patches() -> None:
    with pytest.raises(ValueError, match="multiple of patch"):
        VisionTransformer(dim=8, depth=1, heads=2, hidden=8, patch=5)


@pytest.mark.parametrize(
    "model",
    [
        GroupNormResNet(width=8, blocks=(1, 1)),
        VisionTransformer(dim=16, depth=1, heads=2, hidden=32, size=8),
    ],
    ids=["resnet", "vit"],
)
def test_small_ones_learn(model: nn.Module) -> None:
    torch.manual_seed(0)
    images, labels = torch.randn(8, 3, 8, 8), torch.arange(8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2
