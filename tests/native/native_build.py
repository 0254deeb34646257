"""Configure and build native/ for the tests: one directory a kind of build, kept in build/."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD_SECONDS = 900
TEST_SECONDS = 900


def missing_compiler() -> str | None:
    """Why native code cannot be built here, or None."""
    if any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return None
    return "no C++ compiler (c++, g++ or clang++) on PATH"


def tool(name: str) -> str:
    """Path of cmake, ctest or ninja: the one of this Python's environment comes first."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    assert found, f"{name} is neither beside {sys.executable} nor on PATH: pip install cmake ninja"
    return found


def run(command: Sequence[str], *, seconds: float, cwd: Path | None = None) -> str:
    """The command's output; AssertionError with that output when it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        timeout=seconds,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)} exited {done.returncode}:\n{done.stdout}"
    return done.stdout


@contextmanager
def only_one(directory: Path) -> Iterator[None]:
    """Two test runs of one checkout take turns with a build directory."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build(name: str, *options: str, targets: Sequence[str] = ()) -> Path:
    """Build ``native/`` in ``build/<name>`` (incrementally) and return that directory."""
    directory = ROOT / "build" / name
    configure = [tool("cmake"), "-S", str(ROOT / "native"), "-B", str(directory)]
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
    with only_one(directory):
        run([*configure, *generator, *options], seconds=300)
        wanted = ["--target", *targets] if targets else []
        run([tool("cmake"), "--build", str(directory), *wanted], seconds=BUILD_SECONDS)
    return directory


def shared_library(directory: Path) -> Path:
    """The library a build made."""
    found = [directory / name for name in ("libmccl.so", "libmccl.dylib")]
    return next(path for path in found if path.exists())
