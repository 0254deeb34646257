"""Configure and build native/ for the tests: one directory a kind of build, kept in build/."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD_SECONDS = 900
TEST_SECONDS = 900


def missing_tools() -> str | None:
    """What keeps native code from being built here, or None."""
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        return "no C++ compiler (c++, g++ or clang++) on PATH"
    if shutil.which("cmake") is None:
        return "no cmake on PATH"
    return None


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
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = ["cmake", "-S", str(ROOT / "native"), "-B", str(directory), *generator, *options]
    with only_one(directory):
        run(configure, seconds=120)
        wanted = ["--target", *targets] if targets else []
        run(["cmake", "--build", str(directory), *wanted], seconds=BUILD_SECONDS)
    return directory


def shared_library(directory: Path) -> Path:
    """The library a build made."""
    found = [directory / name for name in ("libmccl.so", "libmccl.dylib")]
    return next(path for path in found if path.exists())
