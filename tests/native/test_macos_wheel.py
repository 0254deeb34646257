"""The wheel for Apple silicon, cross-built here: what can be known of it without a Mac."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from . import native_build

MISSING = [name for name in ("ziglang", "lief") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"needs {' and '.join(MISSING)}: pip install them"),
    # zig compiles its C++ runtime on first use.
    pytest.mark.timeout(1200),
]

LIBRARY = "mccl/_lib/libmccl.dylib"
SYSTEM = {"/usr/lib/libSystem.B.dylib", "/usr/lib/libc++.1.dylib"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    script = native_build.ROOT / "tools" / "build_macos_wheel.py"
    with native_build.only_one(native_build.ROOT / "build" / "macos-wheel-lock"):
        native_build.run([sys.executable, str(script), "--out", str(out)], seconds=1100)
    (made,) = out.iterdir()
    return made


@pytest.fixture(scope="module")
def dylib(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    import lief

    with zipfile.ZipFile(wheel) as archive:
        path = archive.extract(LIBRARY, tmp_path_factory.mktemp("dylib"))
    binaries = lief.MachO.parse(path)
    assert binaries is not None, f"{LIBRARY} is no Mach-O file"
    assert len(binaries) == 1
    return binaries.at(0)


def _exported(symbols: str) -> set[str]:
    """Names of mccl.h among the defined global symbols that ``nm`` printed."""
    return set(re.findall(r" T (mccl_\w+)", symbols))


def test_wheel_is_for_macos_11_on_arm64_and_any_python(wheel: Path) -> None:
    assert re.fullmatch(r"mccl-[\w.]+-py3-none-macosx_11_0_arm64\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    libraries = [name for name in names if name.endswith((".so", ".dylib"))]
    assert libraries == [LIBRARY]
    assert "mccl/__init__.py" in names


def test_library_is_an_arm64_dylib_for_macos_11(dylib: Any) -> None:
    import lief

    assert dylib.header.cpu_type == lief.MachO.Header.CPU_TYPE.ARM64
    assert dylib.header.file_type == lief.MachO.Header.FILE_TYPE.DYLIB
    assert list(dylib.build_version.minos)[:2] == [11, 0]


def test_library_needs_system_libraries_only(dylib: Any) -> None:
    load = "LOAD_DYLIB"
    needed = {library.name for library in dylib.libraries if str(library.command).endswith(load)}
    assert needed, "no LC_LOAD_DYLIB at all: the reader or the linker is at fault"
    assert needed <= SYSTEM


def test_library_is_signed(dylib: Any) -> None:
    assert dylib.has_code_signature, "Apple silicon refuses to load unsigned code"


def test_library_exports_what_the_linux_one_does(dylib: Any) -> None:
    directory = native_build.build("native-test", "-DMCCL_BUILD_TESTS=ON", targets=["mccl"])
    here = subprocess.run(
        ["nm", "-g", "--defined-only", str(native_build.shared_library(directory))],
        capture_output=True,
        text=True,
        check=True,
    )
    there = {symbol.name.removeprefix("_") for symbol in dylib.exported_symbols}
    expected = _exported(here.stdout)
    assert "mccl_reduce" in expected
    assert {name for name in there if name.startswith("mccl_")} == expected
