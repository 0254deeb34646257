"""Apple Accelerate's vDSP behind the interface of :mod:`mccl.numerics.fft`, through ctypes.

Theory of operation. ``vDSP_fftm_zrip`` transforms many real signals of 2^k samples at once, in
place. It wants the even samples in `realp` and the odd ones in `imagp` (``split``), returns the
spectrum scaled by 2, and packs the real values at DC and Nyquist into `realp[0]` and `imagp[0]`
(vDSP Programming Guide, "Packing for One-Dimensional Arrays"). The inverse takes the same packing
and returns n times the signal (so forward, then inverse
multiplies by 2n). Lengths that are no power of two, and double precision, go to pocketfft.

The packing and the scaling are tested against a stand-in library that follows Apple's description.
**This file has not been run on a Mac.**
"""

from __future__ import annotations

import ctypes
from typing import Any, Protocol

import numpy as np

from mccl.errors import UsageError
from mccl.numerics.fft import Array, Pocketfft

PATH = "/System/Library/Frameworks/Accelerate.framework/Accelerate"
FORWARD, INVERSE = 1, -1
RADIX2 = 0
LEAST_LOG2 = 2
"""vDSP's real transforms start at 4 samples."""


class SplitComplex(ctypes.Structure):
    """``DSPSplitComplex``: two float pointers."""

    _fields_ = (
        ("realp", ctypes.POINTER(ctypes.c_float)),
        ("imagp", ctypes.POINTER(ctypes.c_float)),
    )


class Library(Protocol):
    """The three functions of Accelerate that are used."""

    vDSP_create_fftsetup: Any  # noqa: N815 - Apple's names
    vDSP_destroy_fftsetup: Any  # noqa: N815
    vDSP_fftm_zrip: Any  # noqa: N815


def load() -> Library:
    """Accelerate, with the signatures of vDSP.h set.

    Raises:
        UsageError: this is no Mac.
    """
    try:
        library: Any = ctypes.CDLL(PATH)
    except OSError as error:
        raise UsageError(
            "STFT backend 'accelerate' needs Apple's Accelerate framework, which is not here; "
            f"use 'native' or 'pocketfft' ({error})"
        ) from error
    library.vDSP_create_fftsetup.restype = ctypes.c_void_p
    library.vDSP_create_fftsetup.argtypes = [ctypes.c_ulong, ctypes.c_int]
    library.vDSP_destroy_fftsetup.restype = None
    library.vDSP_destroy_fftsetup.argtypes = [ctypes.c_void_p]
    library.vDSP_fftm_zrip.restype = None
    # setup, buffer, stride, stride between signals, log2 n, number of signals, direction
    library.vDSP_fftm_zrip.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(SplitComplex),
        ctypes.c_long,
        ctypes.c_long,
        ctypes.c_ulong,
        ctypes.c_ulong,
        ctypes.c_int,
    ]
    found: Library = library
    return found


class Accelerate:
    """Single precision by vDSP; the rest by pocketfft."""

    name = "accelerate"
    _opened: Accelerate | None = None

    def __init__(self, library: Library) -> None:
        self._library = library
        self._setups: dict[int, Any] = {}
        self._portable = Pocketfft()

    @classmethod
    def open(cls) -> Accelerate:
        """The one of this process: setups (twiddle tables) are kept."""
        if cls._opened is None:
            cls._opened = cls(load())
        return cls._opened

    def close(self) -> None:
        """Free the twiddle tables."""
        for setup in self._setups.values():
            self._library.vDSP_destroy_fftsetup(setup)
        self._setups.clear()

    def _log2(self, n: int) -> int | None:
        log2 = n.bit_length() - 1
        return log2 if n == 1 << log2 and log2 >= LEAST_LOG2 else None

    def _run(self, real: Array, imag: Array, log2: int, direction: int) -> None:
        """In place on two contiguous float32 arrays of (signals, n / 2)."""
        setup = self._setups.get(log2)
        if setup is None:
            setup = self._library.vDSP_create_fftsetup(log2, RADIX2)
            if not setup:
                raise MemoryError(f"vDSP_create_fftsetup({log2}) failed: out of memory")
            self._setups[log2] = setup
        pointer = ctypes.POINTER(ctypes.c_float)
        split = SplitComplex(real.ctypes.data_as(pointer), imag.ctypes.data_as(pointer))
        signals, half = real.shape
        self._library.vDSP_fftm_zrip(setup, ctypes.byref(split), 1, half, log2, signals, direction)

    def rfft(self, frames: Array) -> Array:
        """See :class:`~mccl.numerics.fft.RealFFT`."""
        n = frames.shape[-1]
        log2 = self._log2(n)
        if log2 is None or frames.dtype != np.float32 or frames.size == 0:
            return self._portable.rfft(frames)
        flat = frames.reshape(-1, n)
        real = np.ascontiguousarray(flat[:, 0::2])
        imag = np.ascontiguousarray(flat[:, 1::2])
        self._run(real, imag, log2, FORWARD)
        out = np.empty((len(flat), n // 2 + 1), np.complex64)
        out[:, 1:-1].real, out[:, 1:-1].imag = real[:, 1:], imag[:, 1:]
        out[:, 0], out[:, -1] = real[:, 0], imag[:, 0]
        out *= np.float32(0.5)
        return out.reshape(*frames.shape[:-1], n // 2 + 1)

    def irfft(self, spectra: Array, n: int) -> Array:
        """See :class:`~mccl.numerics.fft.RealFFT`."""
        log2 = self._log2(n)
        if log2 is None or spectra.dtype != np.complex64 or spectra.size == 0:
            return self._portable.irfft(spectra, n)
        flat = spectra.reshape(-1, n // 2 + 1)
        real = np.ascontiguousarray(flat[:, :-1].real)
        imag = np.ascontiguousarray(flat[:, :-1].imag)
        imag[:, 0] = flat[:, -1].real
        self._run(real, imag, log2, INVERSE)
        out = np.empty((len(flat), n), np.float32)
        out[:, 0::2], out[:, 1::2] = real, imag
        out *= np.float32(1.0 / n)
        return out.reshape(*spectra.shape[:-1], n)
