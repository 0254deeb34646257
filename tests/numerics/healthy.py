"""Twenty models with nothing wrong in them, small, of the kinds people train."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional

from mccl.models import GroupNormResNet, VisionTransformer
from mccl.numerics.mrstft import MultiResolutionSTFTLoss


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded())


class Block(nn.Module):
    """Residual, batch-normalised, with an in-place activation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        return self.act(y)


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 2, 3), nn.MaxPool2d(3, 2, 1), Block(8), Block(8),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.middle = nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect")
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(24, 1, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        a = functional.silu(self.down1(x))
        b = functional.silu(self.down2(functional.avg_pool2d(a, 2)))
        c = functional.silu(self.middle(functional.max_pool2d(b, 2)))
        c = functional.interpolate(c, scale_factor=2, mode="bilinear", align_corners=False)
        wide = functional.interpolate(b, scale_factor=2)
        return self.out(torch.cat([self.up(c + b), a, wide], 1)[:, :24])


class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 8, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(8, 16, 2, dilation=2**i) for i in range(4))
        self.skip = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(4))
        self.last = nn.Conv1d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.first(x), torch.zeros(())
        for conv, skip in zip(self.dilated, self.skip, strict=True):
            filtered, gate = conv(functional.pad(x, (conv.dilation[0], 0))).chunk(2, dim=1)
            y = torch.tanh(filtered) * torch.sigmoid(gate)
            total = total + skip(y)
            x = x + y
        return self.last(functional.relu(total))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn = kind(6, 8, 2, batch_first=True, dropout=0.2, bidirectional=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Any:
        y, state = self.rnn(x)
        return self.head(y[:, -1]), state


class Language(nn.Module):
    """Token ids in, causal mask, tied embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        mask = torch.full((ids.shape[1],) * 2, torch.finfo(self.embed.weight.dtype).min).triu(1)
        x = self.encoder(self.embed(ids), mask=mask)
        return x @ self.embed.weight.t()


class SpectralVAE(nn.Module):
    """Encoder, sampling, decoder and the multi-resolution loss, all in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Conv1d(1, 8, 16, 8, 4)
        self.decode = nn.ConvTranspose1d(4, 1, 16, 8, 4)
        self.register_buffer("window", torch.hann_window(256))

    def spectrum(self, x: Tensor) -> Tensor:
        s = torch.stft(x, 256, 64, window=self.window, return_complex=True)
        return torch.sqrt(s.real**2 + s.imag**2 + 1e-7)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_var = self.encode(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
        y = self.decode(z)
        a, b = self.spectrum(y.squeeze(1)), self.spectrum(x.squeeze(1)[:, : y.shape[-1]])
        kl = -0.5 * torch.mean(1 + log_var - mean**2 - log_var.exp())
        convergence = torch.norm(a - b) / torch.norm(b)
        return functional.l1_loss(torch.log(a), torch.log(b)) + convergence + 0.1 * kl


class Vocoder(nn.Module):
    """Weight normalisation, inverse STFT, two outputs of different kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 2 * 33, 3, padding=1))
        self.register_buffer("window", torch.hann_window(64))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        log_size, phase = self.conv(x).chunk(2, dim=1)
        spectrum = torch.polar(torch.exp(0.1 * log_size), phase)
        return {"audio": torch.istft(spectrum, 64, 16, window=self.window), "spectrum": spectrum}


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Quantised(nn.Module):
    """A custom autograd function, a codebook, gather and scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 4)
        self.codebook = nn.Parameter(noise(12, 4))
        self.register_buffer("usage", torch.zeros(12))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.proj(x)
        index = torch.cdist(z.reshape(-1, 4), self.codebook).argmin(-1)
        with torch.no_grad():
            self.usage.mul_(0.9).scatter_add_(0, index, torch.full(index.shape, 0.1, dtype=z.dtype))
        quantised = self.codebook[index].view_as(z)
        return StraightThrough.apply(4 * z) / 4 + (quantised - z).detach(), quantised


class FourierNet(nn.Module):
    """Complex parameters and spectral convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.complex(noise(4, 4, 9), noise(4, 4, 9)) / 4)
        self.skip = nn.Conv1d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        s = torch.fft.rfft(x)[..., :9]
        y = torch.fft.irfft(torch.einsum("bix,iox->box", s, self.weight), n=x.shape[-1])
        return functional.gelu(y + self.skip(x))


class Mixture(nn.Module):
    """Experts chosen by top-k: indexing, scatter, boolean masks."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        value, index = self.gate(x).topk(2, dim=-1)
        weight, out = torch.softmax(value, -1), torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            row, slot = torch.where(index == i)
            if row.numel():
                out.index_add_(0, row, expert(x[row]) * weight[row, slot].unsqueeze(-1))
        return out


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        run = torch.utils.checkpoint.checkpoint
        y = run(lambda v: torch.tanh(self.a(v)), x, use_reentrant=True)
        return run(self.b, y, use_reentrant=False)


class Reused(nn.Module):
    """One layer three times, under two names, and a dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.same = self.layer
        self.norm, self.drop = nn.LayerNorm(8), nn.Dropout(0.3)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        for layer in (self.layer, self.same, self.layer):
            x = self.norm(x + self.drop(functional.elu(layer(x))))
        return x if scale is None else x * scale


class Mixed(nn.Module):
    """bfloat16 layers with a float32 norm between, casts written out."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)
        self.a.to(torch.bfloat16)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.a(x.to(torch.bfloat16)).float())
        return functional.softmax(y, dim=-1)


class Autocast(nn.Module):
    """Products in bfloat16 chosen by autocast, float32 parameters and gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = functional.gelu(self.a(x))
        return self.b(y.float())


class Graph(nn.Module):
    """Message passing over an edge list."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(12, 6), nn.GRUCell(6, 6)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        sent = functional.leaky_relu(self.message(torch.cat([x[source], x[target]], -1)))
        pooled = torch.zeros_like(x).scatter_add(0, target[:, None].expand_as(sent), sent)
        return self.update(pooled, x)


class Positional(nn.Module):
    """Attention written out: einsum, masked fill with -inf, rotary positions by complex product."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        angle = torch.arange(6)[:, None] / 100 ** (torch.arange(8) / 8)
        self.register_buffer("turn", torch.polar(torch.ones_like(angle), angle))

    def rotate(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], 8, 2).contiguous())
        return torch.view_as_real(pairs * self.turn).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).split(16, dim=-1)
        score = torch.einsum("bqd,bkd->bqk", self.rotate(q), self.rotate(k)) / math.sqrt(16)
        hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
        return torch.softmax(score.masked_fill(hidden, -math.inf), -1) @ v


class STFTLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 9, padding=4)
        self.loss = MultiResolutionSTFTLoss(((128, 32, 128), (64, 16, 64)), stft=torch.stft)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.conv(x).squeeze(1), y.squeeze(1))


def _edges() -> Tensor:
    return torch.randint(0, 7, (2, 15), generator=seeded())


# fmt: off
HEALTHY: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "vit": (lambda: VisionTransformer(dim=32, depth=2, heads=4, hidden=64),
            lambda: (noise(2, 3, 32, 32),)),
    "resnet-batchnorm": (resnet, lambda: (noise(4, 3, 32, 32),)),
    "resnet-groupnorm": (lambda: GroupNormResNet(width=8, blocks=(1, 1)),
                         lambda: (noise(2, 3, 32, 32),)),
    "unet": (UNet, lambda: (noise(2, 1, 16, 16),)),
    "wavenet": (WaveNet, lambda: (noise(2, 1, 200),)),
    "transformer": (Language, lambda: (torch.randint(0, 20, (2, 9), generator=seeded()),)),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: (noise(3, 7, 6),)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: (noise(3, 7, 6),)),
    "stft-loss-vae": (SpectralVAE, lambda: (noise(2, 1, 2048),)),
    "multi-resolution-stft": (STFTLoss, lambda: (noise(2, 1, 1000), 0.5 * noise(2, 1, 1000))),
    "vocoder": (Vocoder, lambda: (noise(2, 8, 20),)),
    "vector-quantised": (Quantised, lambda: (noise(3, 5, 8),)),
    "fourier-operator": (FourierNet, lambda: (noise(2, 4, 32),)),
    "mixture-of-experts": (Mixture, lambda: (noise(10, 8),)),
    "checkpointed": (Checkpointed, lambda: (noise(4, 8),)),
    "reused-and-dropout": (Reused, lambda: (noise(16, 8), noise(8))),
    "mixed-precision": (Mixed, lambda: (noise(4, 16),)),
    "autocast": (Autocast, lambda: (noise(5, 64),)),
    "graph": (Graph, lambda: (noise(7, 6), _edges())),
    "attention-written-out": (Positional, lambda: (noise(2, 6, 16),)),
    "attention-module": (lambda: nn.TransformerDecoderLayer(16, 2, 32, 0.1, batch_first=True),
                         lambda: (noise(2, 5, 16), 0.3 * noise(2, 7, 16))),
    "mlp-float64": (lambda: nn.Sequential(nn.Linear(8, 8), nn.Mish(), nn.Linear(8, 2)).double(),
                    lambda: (noise(4, 8).double(),)),
    "mlp-bfloat16": (lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64),
                                           nn.Linear(64, 8)).bfloat16(),
                     lambda: (noise(4, 64).bfloat16(),)),
}
# fmt: on
"""By name: the model and its example inputs."""
