"""A residual network with GroupNorm, for small images.

GroupNorm keeps normalisation independent of the batch on each rank, so the same global batch gives
the same gradients on any number of ranks (paper §5.3). The paper states 31.6 M parameters and
five 25 MB buckets, but not the layout; :meth:`GroupNormResNet.paper` is one that has both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(32, channels // 4), channels)


class Block(nn.Module):
    """Two 3x3 convolutions and a way past; ``(N, C, H, W)`` to ``(N, out, H/stride, W/stride)``."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = _norm(outside)
        self.past: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.past = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), _norm(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.past(x))


class GroupNormResNet(nn.Module):
    """Images ``(N, channels, H, W)`` in float32 to logits ``(N, classes)``.

    Args:
        width: channels of the first stage; each further stage has twice as many.
        blocks: residual blocks of each stage; every stage but the first halves the image.
    """

    def __init__(
        self, *, width: int, blocks: Sequence[int], channels: int = 3, classes: int = 10
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = _norm(width)
        stages: list[nn.Module] = []
        inside = width
        for stage, count in enumerate(blocks):
            outside = width << stage
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                stages.append(Block(inside, outside, stride))
                inside = outside
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(inside, classes)

    @classmethod
    def paper(cls) -> GroupNormResNet:
        """31.6 M parameters: 126 MB of fp32 gradients."""
        return cls(width=64, blocks=(3, 3, 3, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.stages(functional.relu(self.norm(self.stem(x))))
        out: Tensor = self.head(torch.mean(y, dim=(2, 3)))
        return out
