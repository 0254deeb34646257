"""The native tests under the sanitizers, and the kernels against torch."""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from . import native_build

MISSING = native_build.missing_compiler()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.timeout(native_build.BUILD_SECONDS + native_build.TEST_SECONDS),
]


def _fixed_addresses() -> list[str]:
    """Prefix that turns address randomization off: gcc 12's TSan fails under much of it."""
    command = ["setarch", platform.machine(), "--addr-no-randomize"]
    if shutil.which("setarch") is None:
        return []
    works = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return command if works else []


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_native_tests_pass_under_sanitizer(sanitizer: str) -> None:
    name = f"native-{sanitizer.partition(',')[0]}-sanitizer"
    options = ["-DMCCL_BUILD_TESTS=ON", f"-DMCCL_SANITIZE={sanitizer}"]
    directory = native_build.build(name, *options)
    ctest = [native_build.tool("ctest"), "--output-on-failure", "--timeout", "300"]
    with native_build.only_one(directory):
        output = native_build.run(
            [*_fixed_addresses(), *ctest], seconds=native_build.TEST_SECONDS, cwd=directory
        )
    assert "100% tests passed" in output
    assert "test_reduce" in output


def test_unknown_sanitizer_is_refused(tmp_path: Path) -> None:
    command = [
        native_build.tool("cmake"),
        "-S",
        str(native_build.ROOT / "native"),
        "-B",
        str(tmp_path),
    ]
    done = subprocess.run(
        [*command, "-DMCCL_SANITIZE=valgrind"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "valgrind" in done.stderr
    assert "address,undefined" in done.stderr


KERNEL_TESTS = [f"test_{name}" for name in ("convert", "crc32c", "divide", "isa", "reduce")]


def test_neon_kernels_under_qemu() -> None:
    tools = ["aarch64-linux-gnu-g++", "qemu-aarch64-static"]
    missing = [name for name in tools if shutil.which(name) is None]
    if missing:
        pytest.skip(f"cross-building for ARM needs {' and '.join(missing)}")
    options = ["-DMCCL_BUILD_TESTS=ON", "-DCMAKE_TOOLCHAIN_FILE=cmake/aarch64-linux-gnu.cmake"]
    directory = native_build.build("native-aarch64", *options, targets=KERNEL_TESTS)
    ctest = [native_build.tool("ctest"), "--verbose", "-R", f"^({'|'.join(KERNEL_TESTS)})$"]
    with native_build.only_one(directory):
        output = native_build.run(ctest, seconds=native_build.TEST_SECONDS, cwd=directory)
    assert re.search(rf"100% tests passed.* out of {len(KERNEL_TESTS)}\n", output), output
    assert "neon: done" in output, "the tests ran without NEON kernels"


@pytest.mark.skipif(platform.system() != "Linux", reason="reads the library with GNU nm and ldd")
def test_library_exports_its_header_and_needs_the_system_only(library: ctypes.CDLL) -> None:
    exported = native_build.run(["nm", "-D", "--defined-only", library._name], seconds=60)
    names = {line.split()[-1] for line in exported.splitlines()}
    assert "mccl_reduce" in names
    assert {name for name in names if not name.startswith("mccl_")} == set()
    needed = native_build.run(["ldd", library._name], seconds=60)
    assert "libstdc++" not in needed
    assert "libgcc_s" not in needed


DTYPES: dict[torch.dtype, int] = {
    torch.uint8: 0,
    torch.int8: 1,
    torch.int16: 2,
    torch.int32: 3,
    torch.int64: 4,
    torch.float16: 5,
    torch.bfloat16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bool: 9,
    torch.complex64: 10,
    torch.complex128: 11,
}
SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR = range(8)
TORCH_OPS: dict[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    SUM: torch.add,
    PRODUCT: torch.mul,
    MIN: torch.minimum,
    MAX: torch.maximum,
    BAND: torch.bitwise_and,
    BOR: torch.bitwise_or,
    BXOR: torch.bitwise_xor,
}
OK, INVALID = 0, 4
COUNT = 10_007


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    directory = native_build.build("native-test", "-DMCCL_BUILD_TESTS=ON", targets=["mccl"])
    loaded = ctypes.CDLL(str(native_build.shared_library(directory)))
    loaded.mccl_kernel_isa.restype = ctypes.c_char_p
    pointer, number, size = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_size_t
    loaded.mccl_reduce.argtypes = [number, number, pointer, pointer, pointer, size]
    loaded.mccl_divide.argtypes = [number, pointer, pointer, size, number]
    loaded.mccl_convert.argtypes = [number, pointer, number, pointer, size]
    return loaded


ARM = platform.machine() in ("aarch64", "arm64")


@pytest.fixture(params=["generic", "neon"] if ARM else ["generic", "avx2", "avx512"])
def kernels(request: pytest.FixtureRequest, library: ctypes.CDLL) -> Iterator[ctypes.CDLL]:
    before = library.mccl_kernel_isa(None)
    if library.mccl_kernel_isa(request.param.encode()) is None:
        pytest.skip(f"this processor has no {request.param}")
    yield library
    library.mccl_kernel_isa(before)


def _values(dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(COUNT, generator=generator) < 0.5
    if dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(COUNT, dtype=torch.float64, generator=generator) * 100
        if dtype.is_complex:
            return torch.complex(values, values.flip(0)).to(dtype)
        if seed == 1:
            values[::97] = torch.nan
            values[5::97] = torch.inf
        return values.to(dtype)
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max, (COUNT,), dtype=dtype, generator=generator)


def _expected(dtype: torch.dtype, redop: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if dtype == torch.bool:
        logical = {SUM: BOR, MAX: BOR, PRODUCT: BAND, MIN: BAND}
        redop = logical.get(redop, redop)
    return TORCH_OPS[redop](a, b)


def _offered(dtype: torch.dtype, redop: int) -> bool:
    if dtype.is_complex:
        return redop == SUM
    return not (dtype.is_floating_point and redop in (BAND, BOR, BXOR))


@pytest.mark.parametrize("redop", list(TORCH_OPS))
@pytest.mark.parametrize("dtype", list(DTYPES), ids=lambda d: str(d).removeprefix("torch."))
def test_reduce_equals_torch(kernels: ctypes.CDLL, dtype: torch.dtype, redop: int) -> None:
    a, b = _values(dtype, 1), _values(dtype, 2)
    out = torch.empty_like(a)
    status = kernels.mccl_reduce(
        DTYPES[dtype], redop, out.data_ptr(), a.data_ptr(), b.data_ptr(), COUNT
    )
    if not _offered(dtype, redop):
        assert status == INVALID
        return
    assert status == OK
    expected = _expected(dtype, redop, a, b)
    assert torch.equal(out.nan_to_num(1e4), expected.nan_to_num(1e4))
    assert torch.equal(out.isnan(), expected.isnan())


@pytest.mark.parametrize("divisor", [2, 3, 7, 64, 100])
@pytest.mark.parametrize("dtype", list(DTYPES), ids=lambda d: str(d).removeprefix("torch."))
def test_divide_equals_torch(kernels: ctypes.CDLL, dtype: torch.dtype, divisor: int) -> None:
    values = _values(dtype, 2)
    out = torch.empty_like(values)
    status = kernels.mccl_divide(DTYPES[dtype], out.data_ptr(), values.data_ptr(), COUNT, divisor)
    if dtype == torch.bool:
        assert status == INVALID
        return
    assert status == OK
    if dtype.is_complex:
        parts = torch.view_as_real(values)
        expected = torch.view_as_complex(parts / torch.full_like(parts, divisor))
    elif dtype.is_floating_point:
        expected = (values.double() / divisor).to(dtype)
        if dtype != torch.float64:  # one rounding through f32 first, as the kernels do it
            expected = (values.float() / torch.full((COUNT,), float(divisor))).to(dtype)
    else:
        expected = torch.div(values, divisor, rounding_mode="trunc")
    assert torch.equal(out, expected)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_convert_equals_torch(kernels: ctypes.CDLL, half: torch.dtype) -> None:
    values = _values(torch.float32, 2) * torch.logspace(-12, 6, COUNT)
    narrow = torch.empty(COUNT, dtype=half)
    wide = torch.empty(COUNT)
    f32 = DTYPES[torch.float32]
    number, convert = DTYPES[half], kernels.mccl_convert
    assert convert(number, narrow.data_ptr(), f32, values.data_ptr(), COUNT) == OK
    assert torch.equal(narrow, values.to(half))
    assert convert(f32, wide.data_ptr(), number, narrow.data_ptr(), COUNT) == OK
    assert torch.equal(wide, narrow.float())
