"""A Vision Transformer for small images (paper §5.2: 113.5 M parameters, eighteen 25 MB buckets).

The paper states the parameter count and the bytes, not the layout; :meth:`VisionTransformer.paper`
is ViT-Base's width at sixteen layers with 4x4 patches of 32x32 images, which has both.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Layer(nn.Module):
    """Pre-norm attention and MLP: ``(N, tokens, dim) -> (N, tokens, dim)``."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        n, tokens, dim = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(n, tokens, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.out(y.reshape(n, tokens, dim))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return out


class VisionTransformer(nn.Module):
    """Images ``(N, channels, size, size)`` in float32 to logits ``(N, classes)``.

    Raises:
        ValueError: `size` is no multiple of `patch`, or `dim` none of `heads`.
    """

    def __init__(
        self,
        *,
        dim: int,
        depth: int,
        heads: int,
        hidden: int,
        patch: int = 4,
        size: int = 32,
        channels: int = 3,
        classes: int = 10,
    ) -> None:
        super().__init__()
        if size % patch or dim % heads:
            raise ValueError(
                f"size {size} must be a multiple of patch {patch}, and dim {dim} of heads {heads}"
            )
        self.embed = nn.Conv2d(channels, dim, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, dim))
        self.position = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, dim))
        self.layers = nn.Sequential(*(Layer(dim, heads, hidden) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    @classmethod
    def paper(cls) -> VisionTransformer:
        """113.5 M parameters: 454 MB of fp32 gradients."""
        return cls(dim=768, depth=16, heads=12, hidden=3072)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.embed(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), -1, -1), tokens], dim=1) + self.position
        out: Tensor = self.head(self.norm(self.layers(tokens))[:, 0])
        return out
