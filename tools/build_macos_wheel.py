#!/usr/bin/env python3
"""Build the wheel for Apple silicon (macOS 11 or newer) on any machine that zig runs on.

    .venv/bin/pip install ziglang
    .venv/bin/python tools/build_macos_wheel.py [--out dist]

The PyPI package ziglang brings a C++ compiler, macOS headers and a linker that signs ad hoc, as
Apple silicon demands of every library. The first run compiles zig's C++ runtime (minutes); later
ones take seconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TAG = "py3-none-macosx_11_0_arm64"


def build(out: Path) -> Path:
    """Build the wheel into ``out`` and return its path.

    Raises CalledProcessError when the build fails (its output has been shown).
    """
    settings = {
        "wheel.tags": TAG,
        "build-dir": "build/wheel-macos-arm64",
        "cmake.define.CMAKE_TOOLCHAIN_FILE": str(ROOT / "native/cmake/macos-arm64-zig.cmake"),
        "cmake.define.MCCL_PYTHON": sys.executable,
    }
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    for key, value in settings.items():
        command += ["--config-settings", f"{key}={value}"]
    subprocess.run([*command, "--wheel-dir", str(out), str(ROOT)], cwd=ROOT, check=True)
    return max(out.glob(f"mccl-*-{TAG}.whl"), key=lambda path: path.stat().st_mtime)


def main() -> int:
    """Entry point; 0 when the wheel is there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    out = parser.parse_args().out
    for module, package in (("ziglang", "ziglang"), ("scikit_build_core", "scikit-build-core")):
        if importlib.util.find_spec(module) is None:
            print(f"{sys.executable} lacks {package}: pip install {package}", file=sys.stderr)
            return 1
    print(build(out.resolve()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
