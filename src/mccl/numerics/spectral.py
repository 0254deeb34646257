"""An STFT and its inverse that share nothing with torch's, with exact gradients.

Drop-in for ``torch.stft`` and ``torch.istft``. Both are linear, so a backward pass is the adjoint
of the forward pass, written out here: the adjoint of framing is overlap-add, that of reflection
is folding the edges back, that of the real FFT is an inverse FFT with the inner bins halved.
Work is done on the CPU, in the input's precision (``backend="native"``) or in float64
(``"reference"``), and the result is returned to where the input came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from mccl.errors import UsageError
from mccl.numerics.fft import Array, RealFFT
from mccl.numerics.fft import backend as open_backend


@dataclass(frozen=True)
class Frames:
    """How a signal of `length` samples is cut: `n_fft` long, every `hop`, `pad` added at each end.

    mode: how the ends are padded ("reflect" or "constant").
    """

    n_fft: int
    hop: int
    pad: int
    mode: str
    length: int

    @property
    def padded(self) -> int:
        """Samples after padding."""
        return self.length + 2 * self.pad

    @property
    def count(self) -> int:
        """Number of frames."""
        return 1 + (self.padded - self.n_fft) // self.hop

    def cut(self, x: Array) -> Array:
        """``(rows, length)`` to ``(rows, count, n_fft)``."""
        if self.pad:
            kind: Any = "reflect" if self.mode == "reflect" else "constant"
            x = np.pad(x, ((0, 0), (self.pad, self.pad)), mode=kind)
        windows = np.lib.stride_tricks.sliding_window_view(x, self.n_fft, axis=-1)
        return windows[:, :: self.hop]

    def add(self, frames: Array) -> Array:
        """Overlap-add: ``(rows, count, n_fft)`` to ``(rows, padded)``."""
        rows, count, n_fft = frames.shape
        parts = -(-n_fft // self.hop)
        whole = np.zeros((rows, count, parts * self.hop), frames.dtype)
        whole[..., :n_fft] = frames
        out = np.zeros((rows, count + parts - 1, self.hop), frames.dtype)
        for i in range(parts):
            out[:, i : i + count] += whole[..., i * self.hop : (i + 1) * self.hop]
        flat = out.reshape(rows, -1)
        result = np.zeros((rows, self.padded), frames.dtype)
        used = min(flat.shape[1], self.padded)
        result[:, :used] = flat[:, :used]
        return result

    def uncut(self, frames: Array) -> Array:
        """Adjoint of :meth:`cut`: ``(rows, count, n_fft)`` to ``(rows, length)``."""
        full = self.add(frames)
        if not self.pad:
            return full
        pad, length = self.pad, self.length
        out: Array = full[:, pad : pad + length].copy()
        if self.mode == "reflect":
            out[:, 1 : pad + 1] += full[:, :pad][:, ::-1]
            out[:, length - 1 - pad : length - 1] += full[:, pad + length :][:, ::-1]
        return out


def _weights(bins: int, n_fft: int) -> Array:
    """How often a bin of the half spectrum stands in the full one: 1 at DC and Nyquist, else 2."""
    weights = np.full(bins, 2.0)
    weights[0] = 1.0
    if n_fft % 2 == 0:
        weights[-1] = 1.0
    return weights


def _array(tensor: Tensor) -> Array:
    found: Array = tensor.detach().resolve_conj().resolve_neg().to("cpu").numpy()
    return found


def _like(array: Array, tensor: Tensor, *, complex_: bool) -> Tensor:
    wide = tensor.dtype in (torch.float64, torch.complex128)
    real = torch.float64 if wide else torch.float32
    dtype = (torch.complex128 if wide else torch.complex64) if complex_ else real
    return torch.from_numpy(np.ascontiguousarray(array)).to(device=tensor.device, dtype=dtype)


class _Forward(torch.autograd.Function):
    """(rows, length) real to (rows, bins, frames) complex."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, window: Array, frames: Frames, fft: RealFFT, scale: float
    ) -> Tensor:
        ctx.window, ctx.frames, ctx.fft, ctx.scale = window, frames, fft, scale
        spectra = fft.rfft(_windowed(frames.cut(_array(x)), window, fft)) * _as(scale, fft, x)
        return _like(spectra.swapaxes(1, 2), x, complex_=True)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        frames: Frames = ctx.frames
        spectra = _array(grad).swapaxes(1, 2)
        bins = spectra.shape[-1]
        inner = (ctx.scale * frames.n_fft / _weights(bins, frames.n_fft)).astype(spectra.real.dtype)
        cut = ctx.fft.irfft(np.ascontiguousarray(spectra * inner), frames.n_fft)
        out = frames.uncut(_windowed(cut, ctx.window, ctx.fft))
        return _like(out, grad, complex_=False), None, None, None, None


class _Inverse(torch.autograd.Function):
    """(rows, bins, frames) complex to (rows, padded) real: sum of windowed inverse FFTs."""

    @staticmethod
    def forward(ctx: Any, spectra: Tensor, window: Array, frames: Frames, fft: RealFFT) -> Tensor:
        ctx.window, ctx.frames, ctx.fft = window, frames, fft
        ctx.bins = spectra.shape[1]
        cut = fft.irfft(np.ascontiguousarray(_array(spectra).swapaxes(1, 2)), frames.n_fft)
        return _like(frames.add(_windowed(cut, window, fft)), spectra, complex_=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        frames: Frames = ctx.frames
        cut = _windowed(frames.cut(_array(grad)), ctx.window, ctx.fft)
        spectra = ctx.fft.rfft(cut)
        inner = (_weights(ctx.bins, frames.n_fft) / frames.n_fft).astype(spectra.real.dtype)
        return _like((spectra * inner).swapaxes(1, 2), grad, complex_=True), None, None, None


def _windowed(frames: Array, window: Array, fft: RealFFT) -> Array:
    if fft.name == "reference":
        frames = frames.astype(np.float64, copy=False)
    out: Array = frames * window.astype(frames.dtype, copy=False)
    return out


def _as(scale: float, fft: RealFFT, like: Tensor) -> Any:
    return (
        np.float64(scale)
        if fft.name == "reference" or like.dtype == torch.float64
        else (np.float32(scale))
    )


def _window(window: Tensor | None, win_length: int, n_fft: int) -> Array:
    """The window as float64, centred in `n_fft` samples."""
    if window is not None and window.requires_grad:
        raise UsageError(
            "the window requires a gradient; only signals and spectra have one here. Detach the "
            "window, or use torch.stft"
        )
    if window is not None and tuple(window.shape) != (win_length,):
        raise UsageError(
            f"window has shape {tuple(window.shape)}; expected ({win_length},), the win_length"
        )
    if win_length > n_fft or win_length < 1:
        raise UsageError(f"win_length is {win_length}; expected 1 to n_fft = {n_fft}")
    values = np.ones(win_length) if window is None else _array(window).astype(np.float64)
    left = (n_fft - win_length) // 2
    return np.pad(values, (left, n_fft - win_length - left))


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = True,
    *,
    backend: str = "native",
) -> Tensor:
    """``torch.stft`` of real signals, computed independently of torch, with exact gradients.

    Args:
        input: ``(length,)`` or ``(batch, length)``, float32 or float64, on any device.
        n_fft, hop_length, win_length, window, center, normalized: as in ``torch.stft``; the
            defaults are ``n_fft // 4``, `n_fft`, and a window of ones.
        pad_mode: "reflect" or "constant".
        onesided, return_complex: True or None only.
        backend: "native" (Accelerate on a Mac, else pocketfft), "reference" (float64),
            "pocketfft" or "accelerate".

    Returns:
        ``(…, n_fft // 2 + 1, frames)``, complex64 for float32 and complex128 for float64.

    Raises:
        UsageError: what this does not do (complex or half-precision signals, two-sided or
            real-viewed output, a window with gradient), and impossible lengths.
    """
    _real(input)
    if onesided is False or return_complex is False:
        raise UsageError("onesided=False and return_complex=False are not offered; leave them out")
    hop, length = hop_length or n_fft // 4, input.shape[-1]
    if n_fft < 1 or hop < 1:
        raise UsageError(f"n_fft is {n_fft} and hop_length {hop}; expected both at least 1")
    if pad_mode not in ("reflect", "constant"):
        raise UsageError(f"pad_mode is {pad_mode!r}; expected 'reflect' or 'constant'")
    pad = n_fft // 2 if center else 0
    if pad >= length and pad_mode == "reflect" and center:
        raise UsageError(
            f"a signal of {length} samples cannot be reflected by {pad}; expected more than {pad}"
        )
    if length + 2 * pad < n_fft:
        raise UsageError(f"a signal of {length} samples is shorter than n_fft = {n_fft}")
    values = _window(window, win_length or n_fft, n_fft)
    frames = Frames(n_fft, hop, pad, pad_mode, length)
    scale = n_fft**-0.5 if normalized else 1.0
    rows = input.reshape(-1, length)
    out: Tensor = _Forward.apply(rows, values, frames, open_backend(backend), scale)  # type: ignore[no-untyped-call]
    return out.reshape(*input.shape[:-1], *out.shape[1:])


def istft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
    *,
    backend: str = "native",
) -> Tensor:
    """``torch.istft`` to real signals, computed independently of torch, with exact gradients.

    Args:
        input: ``(n_fft // 2 + 1, frames)`` or ``(batch, n_fft // 2 + 1, frames)``, complex.
        length: samples to return; missing ones are zero. The others as in ``torch.istft``.

    Returns:
        ``(…, length)`` in the precision of `input`.

    Raises:
        UsageError: another shape or dtype; windows that leave a sample uncovered.
    """
    if not input.is_complex() or input.dim() not in (2, 3) or input.shape[-2] != n_fft // 2 + 1:
        raise UsageError(
            f"input is {tuple(input.shape)} of {input.dtype}; expected complex values of shape "
            f"(batch, {n_fft // 2 + 1}, frames)"
        )
    if onesided is False or return_complex:
        raise UsageError("onesided=False and return_complex=True are not offered; leave them out")
    hop, count = hop_length or n_fft // 4, input.shape[-1]
    values = _window(window, win_length or n_fft, n_fft)
    padded = n_fft + hop * (count - 1)
    frames = Frames(n_fft, hop, 0, "constant", padded)
    spectra = input.reshape(-1, *input.shape[-2:])
    signal: Tensor = _Inverse.apply(spectra, values, frames, open_backend(backend))  # type: ignore[no-untyped-call]
    envelope = frames.add(np.broadcast_to(values**2, (1, count, n_fft)))[0]
    begin = n_fft // 2 if center else 0
    end = padded - begin if length is None else min(begin + length, padded)
    covered = envelope[begin:end]
    if covered.size == 0 or float(np.abs(covered).min()) < 1e-11:
        raise UsageError(
            "the windows leave samples uncovered (their squares sum to zero); use a shorter hop "
            "or another window"
        )
    scale = torch.from_numpy(1.0 / covered).to(device=signal.device, dtype=signal.dtype)
    out = signal[:, begin:end] * scale * (n_fft**0.5 if normalized else 1.0)
    if length is not None and length > out.shape[-1]:
        out = torch.nn.functional.pad(out, (0, length - out.shape[-1]))
    return out.reshape(*input.shape[:-2], out.shape[-1])


def _real(signal: Tensor) -> None:
    if signal.dtype not in (torch.float32, torch.float64) or signal.dim() not in (1, 2):
        raise UsageError(
            f"input is {tuple(signal.shape)} of {signal.dtype}; expected float32 or float64 of "
            "shape (length,) or (batch, length)"
        )
