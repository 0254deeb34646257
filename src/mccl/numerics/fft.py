"""Real FFTs over the last axis, by whichever library is at hand.

A backend is two methods over NumPy arrays. The portable one is pocketfft, which NumPy carries;
on a Mac :mod:`mccl.numerics.vdsp` puts Apple's Accelerate behind the same two methods.
"""

from __future__ import annotations

import sys
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mccl.errors import UsageError

Array = NDArray[Any]


class RealFFT(Protocol):
    """`name` for messages; both methods keep the precision of their input."""

    name: str

    def rfft(self, frames: Array) -> Array:
        """``(..., n)`` real to ``(..., n // 2 + 1)`` complex, unscaled."""
        ...

    def irfft(self, spectra: Array, n: int) -> Array:
        """``(..., n // 2 + 1)`` complex to ``(..., n)`` real, scaled by 1/n."""
        ...


class Pocketfft:
    """NumPy's FFT; single precision stays single from NumPy 2 on, and is rounded to it before."""

    name = "pocketfft"

    def rfft(self, frames: Array) -> Array:
        """See :class:`RealFFT`."""
        return np.fft.rfft(frames).astype(np.result_type(frames.dtype, np.complex64), copy=False)

    def irfft(self, spectra: Array, n: int) -> Array:
        """See :class:`RealFFT`."""
        real = np.float32 if spectra.dtype == np.complex64 else np.float64
        return np.fft.irfft(spectra, n).astype(real, copy=False)


class Float64:
    """Double precision whatever the input: the reference."""

    name = "reference"

    def rfft(self, frames: Array) -> Array:
        """See :class:`RealFFT`; always complex128."""
        return np.fft.rfft(frames.astype(np.float64, copy=False))

    def irfft(self, spectra: Array, n: int) -> Array:
        """See :class:`RealFFT`; always float64."""
        return np.fft.irfft(spectra.astype(np.complex128, copy=False), n)


BACKENDS = ("native", "reference", "pocketfft", "accelerate")


def backend(name: str) -> RealFFT:
    """The backend `name`; ``native`` is Accelerate on a Mac and pocketfft elsewhere.

    Raises:
        UsageError: unknown, or not of this platform.
    """
    if name == "reference":
        return Float64()
    if name == "pocketfft" or (name == "native" and sys.platform != "darwin"):
        return Pocketfft()
    if name in ("native", "accelerate"):
        from mccl.numerics.vdsp import Accelerate

        return Accelerate.open()
    raise UsageError(f"STFT backend {name!r} is unknown; expected one of {', '.join(BACKENDS)}")
