"""Multi-resolution STFT loss (Yamamoto et al., 2020) over any STFT, and the check of torch's.

The loss that showed the fault of paper §6.2. It takes the STFT to use, so that the same loss runs
over ``torch.stft`` on the device and over the independent one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mccl.numerics.check import check_model
from mccl.numerics.compare import THRESHOLDS, Measure, measure
from mccl.numerics.device import Device, as_device
from mccl.numerics.findings import Report
from mccl.numerics.spectral import stft as independent_stft

RESOLUTIONS = ((1024, 120, 600), (2048, 240, 1200), (512, 50, 240))
"""(n_fft, hop, window length), as in Parallel WaveGAN and auraloss."""

FLOOR = 1e-8
"""Added to the power before its root: the gradient of a magnitude at zero stays finite."""


class MultiResolutionSTFTLoss(nn.Module):
    """Spectral convergence plus log-magnitude distance, averaged over resolutions.

    ``forward(x, y)``: signals ``(batch, length)``; returns a scalar. `stft` is called like
    ``torch.stft``.
    """

    def __init__(
        self,
        resolutions: Sequence[tuple[int, int, int]] = RESOLUTIONS,
        *,
        stft: Callable[..., Tensor] = torch.stft,
    ) -> None:
        super().__init__()
        self.resolutions = tuple(resolutions)
        self._stft = stft
        for i, (_, _, length) in enumerate(self.resolutions):
            self.register_buffer(f"window{i}", torch.hann_window(length))

    def magnitude(self, x: Tensor, i: int) -> Tensor:
        """Magnitudes of resolution `i`: ``(batch, bins, frames)``."""
        n_fft, hop, length = self.resolutions[i]
        window = self.get_buffer(f"window{i}")
        s = self._stft(x, n_fft, hop, length, window=window, return_complex=True)
        return torch.sqrt(s.real**2 + s.imag**2 + FLOOR)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of `x` against the target `y`."""
        total = x.new_zeros(())
        for i in range(len(self.resolutions)):
            a, b = self.magnitude(x, i), self.magnitude(y, i)
            total = total + torch.linalg.vector_norm(b - a) / torch.linalg.vector_norm(b)
            total = total + torch.nn.functional.l1_loss(torch.log(a), torch.log(b))
        return total / len(self.resolutions)


def stft_gradients(
    length: int,
    *,
    device: str | torch.device | Device = "cpu",
    batch: int = 2,
    n_fft: int = 2048,
    hop: int = 512,
    stft: Callable[..., Tensor] = torch.stft,
    seed: int = 0,
) -> tuple[Measure, Measure]:
    """Output and gradient of a centred `stft` on `device`, against the float64 reference.

    The permanent check: the reference is this project's own, not torch's.
    """
    target = as_device(device)
    generator = torch.Generator().manual_seed(seed)
    signal = torch.randn(batch, length, generator=generator)
    window = torch.hann_window(n_fft)
    x = signal.double().requires_grad_()
    expected = independent_stft(x, n_fft, hop, window=window.double(), backend="reference")
    cotangent = torch.randn(expected.shape, generator=generator, dtype=torch.complex64)
    (expected_grad,) = torch.autograd.grad(expected, x, cotangent.to(torch.complex128))
    place = target.torch_device
    y = signal.to(place).requires_grad_()
    on_device, given = window.to(place), cotangent.to(place)
    with target.active():
        actual = stft(y, n_fft, hop, window=on_device, return_complex=True)
        (grad,) = torch.autograd.grad(actual, y, given)
    return measure(actual, expected.detach()), measure(grad, expected_grad)


def check_stft(
    lengths: Sequence[int] = (2**15, 2**16 - 1, 2**16, 2**16 + 1, 76_800, 2**17 + 1),
    *,
    device: str | torch.device | Device = "cpu",
    batch: int = 2,
) -> dict[int, tuple[Measure, Measure, bool]]:
    """``torch.stft`` on `device` by length: output, gradient, and whether both are right."""
    limits = THRESHOLDS[torch.float32]
    table = {}
    for length in lengths:
        out, grad = stft_gradients(length, device=device, batch=batch)
        table[length] = (out, grad, out.kind(limits) is None and grad.kind(limits) is None)
    return table


def check_auraloss(
    length: int = 76_800, *, device: str | torch.device | Device = "cpu", **options: Any
) -> Report:
    """Check auraloss' multi-resolution STFT loss on `device`, operator by operator.

    Raises:
        ModuleNotFoundError: auraloss is not installed (``pip install auraloss``).
    """
    Loss = importlib.import_module("auraloss.freq").MultiResolutionSTFTLoss  # noqa: N806

    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(2, 1, length, generator=generator) for _ in range(2))
    return check_model(Loss(), (x, y), device=device, **options)
