"""The models of the paper's evaluation (§5.2, §5.3), and smaller ones of the same make."""

from __future__ import annotations

from mccl.models.resnet import GroupNormResNet
from mccl.models.vit import VisionTransformer

__all__ = ["GroupNormResNet", "VisionTransformer"]
