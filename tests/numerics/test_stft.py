"""The independent STFT against torch's on the CPU: values, gradients, edges."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
import pytest
import torch

from mccl.errors import UsageError
from mccl.numerics import istft, stft
from mccl.numerics.fft import Float64, Pocketfft
from mccl.numerics.mrstft import (
    MultiResolutionSTFTLoss,
    check_auraloss,
    check_stft,
    stft_gradients,
)
from mccl.numerics.vdsp import Accelerate, SplitComplex

from .faults import reflect_overflow
from .simulated import FaultyDevice

CASES = [
    {"n_fft": 64, "hop_length": 16, "window": True},
    {"n_fft": 64, "hop_length": 24, "window": True, "pad_mode": "constant"},
    {"n_fft": 64, "hop_length": 64},
    {"n_fft": 64, "hop_length": 100, "window": True},
    {"n_fft": 64, "hop_length": 16, "win_length": 40, "window": True, "normalized": True},
    {"n_fft": 64, "hop_length": 10, "win_length": 33, "window": True, "center": False},
    {"n_fft": 63, "hop_length": 20},
    {"n_fft": 2, "hop_length": 1},
    {"n_fft": 1, "hop_length": 1},
]


def _options(case: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    options = dict(case)
    if options.pop("window", False):
        length = options.get("win_length", options["n_fft"])
        options["window"] = torch.hann_window(length, dtype=dtype)
    return options


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("shape", [(500,), (3, 257)], ids=str)
def test_stft_equals_torch(
    case: dict[str, Any], backend: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    options = _options(case, dtype)
    x = torch.randn(shape, dtype=dtype, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    expected = torch.stft(x, return_complex=True, **options)
    actual = stft(y, return_complex=True, backend=backend, **options)
    torch.testing.assert_close(actual, expected)
    cotangent = torch.randn_like(expected)
    expected.backward(cotangent)
    actual.backward(cotangent)
    torch.testing.assert_close(y.grad, x.grad)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    "options",
    [
        {"n_fft": 64, "hop_length": 16},
        {"n_fft": 64, "hop_length": 16, "win_length": 48, "normalized": True},
        {"n_fft": 63, "hop_length": 20},
        {"n_fft": 64, "hop_length": 16, "length": 300},
        {"n_fft": 64, "hop_length": 16, "length": 333},
        {"n_fft": 64, "hop_length": 32, "center": False, "window": "hamming"},
    ],
    ids=str,
)
@pytest.mark.parametrize("batch", [(), (3,)], ids=str)
def test_istft_equals_torch(backend: str, options: dict[str, Any], batch: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    keywords = dict(options)
    length = keywords.get("win_length", keywords["n_fft"])
    make = torch.hamming_window if keywords.pop("window", "") else torch.hann_window
    window = make(length, dtype=torch.float64)
    bins = keywords["n_fft"] // 2 + 1
    a = torch.randn(*batch, bins, 20, dtype=torch.complex128, requires_grad=True)
    b = a.detach().clone().requires_grad_()
    expected = torch.istft(a, window=window, **keywords)
    actual = istft(b, window=window, backend=backend, **keywords)
    torch.testing.assert_close(actual, expected)
    cotangent = torch.randn_like(expected)
    expected.backward(cotangent)
    actual.backward(cotangent)
    torch.testing.assert_close(b.grad, a.grad)


def test_gradients_are_exact() -> None:
    torch.manual_seed(0)
    window = torch.hann_window(8, dtype=torch.float64)
    x = torch.randn(2, 30, dtype=torch.float64, requires_grad=True)
    s = torch.randn(2, 5, 9, dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: stft(v, 8, 3, window=window), x)
    assert torch.autograd.gradcheck(lambda v: istft(v, 8, 3, window=window), s)


def test_there_and_back_again() -> None:
    x = torch.randn(2, 4096, generator=torch.Generator().manual_seed(1))
    window = torch.hann_window(512)
    back = istft(stft(x, 512, 128, window=window), 512, 128, window=window, length=4096)
    torch.testing.assert_close(back, x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stft(torch.zeros(100).half(), 16), "float32 or float64"),
        (lambda: stft(torch.zeros(8), 16), "cannot be reflected"),
        (lambda: stft(torch.zeros(8), 16, center=False), "shorter than n_fft"),
        (lambda: stft(torch.zeros(100), 16, onesided=False), "onesided"),
        (lambda: stft(torch.zeros(100), 16, pad_mode="circular"), "pad_mode"),
        (lambda: stft(torch.zeros(100), 16, window=torch.ones(9)), "win_length"),
        (lambda: stft(torch.zeros(100), 16, window=torch.ones(16, requires_grad=True)), "gradient"),
        (lambda: stft(torch.zeros(100), 16, backend="cufft"), "native, reference"),
        (lambda: istft(torch.zeros(9, 4), 16), "complex"),
        (lambda: istft(torch.ones(9, 4, dtype=torch.complex64), 16, 32), "uncovered"),
    ],
)
def test_wrong_calls_say_what_to_do(call: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        call()


@pytest.mark.skipif(sys.platform == "darwin", reason="Accelerate is there on a Mac")
def test_accelerate_is_refused_elsewhere() -> None:
    with pytest.raises(UsageError, match="Accelerate framework"):
        stft(torch.zeros(100), 16, backend="accelerate")


class AppleStandIn:
    """vDSP as its guide describes it: forward spectra doubled, packed, inverse times n."""

    def __init__(self) -> None:
        self.live = 0

    def vDSP_create_fftsetup(self, log2: int, radix: int) -> int:  # noqa: N802
        self.live += 1
        return log2 + 1

    def vDSP_destroy_fftsetup(self, setup: int) -> None:  # noqa: N802
        self.live -= 1

    def vDSP_fftm_zrip(  # noqa: N802
        self, setup: int, split: Any, stride: int, between: int, log2: int, count: int, way: int
    ) -> None:
        n = 1 << log2
        assert (setup, stride, between) == (log2 + 1, 1, n // 2)
        parts = ctypes.cast(split, ctypes.POINTER(SplitComplex)).contents
        real = np.ctypeslib.as_array(parts.realp, (count, n // 2))
        imag = np.ctypeslib.as_array(parts.imagp, (count, n // 2))
        if way == 1:
            x = np.empty((count, n))
            x[:, 0::2], x[:, 1::2] = real, imag
            full = 2 * np.fft.rfft(x)
            real[:], imag[:] = full[:, :-1].real, full[:, :-1].imag
            imag[:, 0] = full[:, -1].real
        else:
            packed = np.zeros((count, n // 2 + 1), complex)
            packed[:, 1:-1] = real[:, 1:] + 1j * imag[:, 1:]
            packed[:, 0], packed[:, -1] = real[:, 0], imag[:, 0]
            x = n * np.fft.irfft(packed, n)
            real[:], imag[:] = x[:, 0::2], x[:, 1::2]


@pytest.mark.parametrize("n", [4, 8, 512, 12])
def test_vdsp_packing(n: int) -> None:
    library = AppleStandIn()
    accelerate = Accelerate(library)
    rng = np.random.default_rng(0)
    frames = rng.standard_normal((3, 5, n)).astype(np.float32)
    spectra = accelerate.rfft(frames)
    assert spectra.dtype == np.complex64
    np.testing.assert_allclose(spectra, np.fft.rfft(frames), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(accelerate.irfft(spectra, n), frames, rtol=1e-4, atol=1e-5)
    assert library.live == (0 if n == 12 else 1)
    accelerate.close()
    assert library.live == 0


def test_backends_keep_or_raise_precision() -> None:
    x = np.ones((2, 8), np.float32)
    assert Pocketfft().rfft(x).dtype == np.complex64
    assert Pocketfft().irfft(np.ones((2, 5), np.complex64), 8).dtype == np.float32
    assert Float64().rfft(x).dtype == np.complex128


def test_auraloss_is_checked() -> None:
    pytest.importorskip("auraloss", reason="auraloss is an optional extra")
    device = FaultyDevice({torch.ops.aten.reflection_pad1d_backward.default: reflect_overflow})
    assert check_auraloss(2**16 + 1, device="cpu", deterministic=False).ok
    report = check_auraloss(2**16 + 1, device=device, deterministic=False)
    assert len(report.findings) == 6  # two signals at three resolutions
    assert all(f.op == "torch.functional.stft" for f in report.findings), str(report)
    assert all(f.name.startswith("stft_losses.") for f in report.findings), str(report)


def test_own_loss_agrees_with_auraloss() -> None:
    freq = pytest.importorskip("auraloss.freq", reason="auraloss is an optional extra")
    x, y = torch.randn(2, 2, 4000, generator=torch.Generator().manual_seed(4))
    options = {"fft_sizes": [1024, 512], "hop_sizes": [120, 50], "win_lengths": [600, 240]}
    expected = freq.MultiResolutionSTFTLoss(**options)(x[:, None], y[:, None])
    own = MultiResolutionSTFTLoss(((1024, 120, 600), (512, 50, 240)), stft=stft)
    torch.testing.assert_close(own(x, y), expected, rtol=1e-4, atol=1e-5)


def test_permanent_check_passes_on_this_cpu() -> None:
    table = check_stft((2**16 - 1, 2**16 + 1), device="cpu")
    assert all(fine for _, _, fine in table.values())


def test_permanent_check_sees_the_fault() -> None:
    kernel = torch.ops.aten.reflection_pad1d_backward.default
    table = check_stft((2**16 - 4000, 2**16 + 1), device=FaultyDevice({kernel: reflect_overflow}))
    assert [fine for _, _, fine in table.values()] == [True, False]


def test_independent_stft_does_not_have_the_fault() -> None:
    device = FaultyDevice({torch.ops.aten.reflection_pad1d_backward.default: reflect_overflow})
    _, wrong = stft_gradients(2**16 + 1, device=device)
    _, right = stft_gradients(2**16 + 1, device=device, stft=stft)
    assert wrong.cosine < 0.9
    assert right.cosine > 0.9999
