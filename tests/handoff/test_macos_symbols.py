"""Every libtorch symbol the Metal bridge looks up is exported by the macOS torch wheels.

Downloads one wheel of about 130 MB after the other, so it is slow. ``TORCH_VERSIONS`` (space
separated) tries others than those that ``docs/handoff.md`` lists.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = os.environ.get("TORCH_VERSIONS", "2.12.0 2.12.1 2.13.0 2.14.0 2.14.1 2.15.0").split()


def symbols_used() -> set[str]:
    """The C++ symbols in the bridge's source, as Mach-O names them."""
    source = (ROOT / "native" / "src" / "metal_runtime.cc").read_text()
    return {f"_{name}" for name in re.findall(r'"(_ZN5torch\w+)"', source)}


def test_the_symbols_are_found_in_the_source() -> None:
    assert len(symbols_used()) == 3


@pytest.mark.slow
@pytest.mark.network
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", VERSIONS)
def test_torch_exports_what_the_bridge_uses(version: str, tmp_path: Path) -> None:
    lief = pytest.importorskip("lief", reason="needs lief to read Mach-O files")
    download = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--no-deps"),
            *("--only-binary=:all:", "--platform", "macosx_14_0_arm64"),
            *("--python-version", "3.11", "--dest", str(tmp_path), f"torch=={version}"),
        ],
        capture_output=True,
        text=True,
        timeout=800,
    )
    if "(constraint) torch" in download.stderr + download.stdout:
        pytest.skip(f"this machine's pip is constrained to other versions than torch {version}")
    assert download.returncode == 0, download.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        library = Path(archive.extract("torch/lib/libtorch_cpu.dylib", tmp_path))
        metal = archive.read("torch/mps/__init__.py").decode()
    wheel.unlink()
    binary = lief.MachO.parse(str(library)).at(0)
    exported = {str(symbol.name) for symbol in binary.exported_symbols}
    library.unlink()
    missing = symbols_used() - exported
    assert not missing, f"torch {version} does not export {sorted(missing)}"
    alias = "_host_alias_storage" in metal
    print(f"torch {version}: all symbols exported; torch.mps._host_alias_storage: {alias}")
