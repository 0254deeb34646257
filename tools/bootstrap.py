#!/usr/bin/env python3
"""Make this checkout ready to use: check the machine, then fill .venv and build the library.

    python3 tools/bootstrap.py --for demo|test|bench|native

Standard library only, and readable by any Python 3.7+, so that an old Python can say what is
missing. Every step is skipped when it has nothing to do; a second run takes about a second.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINIMUM = (3, 11)
TORCH = "torch==2.13.0"
BUILD = ["numpy", "cmake", "ninja", "scikit-build-core", "setuptools"]
CHECKS = [
    "pytest",
    "pytest-timeout",
    "ruff",
    "mypy",
    "import-linter",
    "auraloss",
    "prometheus-client",
]
PACKAGES = {
    "native": ["cmake", "ninja"],
    "demo": [*BUILD, "rich", "scikit-learn"],
    "bench": [*BUILD, "rich"],
    "test": [*BUILD, "rich", "scikit-learn", *CHECKS],
}
DISK_GIB = {"native": 0.3, "demo": 2.5, "bench": 2.5, "test": 3.0}
CUDA_GIB = 9.0  # what torch's CUDA build and its libraries unpack to, and the downloads
MAC = sys.platform == "darwin"
START = time.monotonic()
QUIET = 10.0  # seconds after which a log without a terminal gets a line, so it does not look stuck


def say(text: str) -> None:
    """One line of progress, with the time since the start."""
    print(f"[setup {time.monotonic() - START:5.1f} s] {text}", flush=True)


def stop(problems: list[str]) -> None:
    """Name everything that is missing, at once, and end."""
    print("\nThis machine is not ready:", file=sys.stderr)
    for problem in problems:
        print("  - " + problem.replace("\n", "\n    "), file=sys.stderr)
    print("\nNothing was changed. Run the same command again afterwards.", file=sys.stderr)
    raise SystemExit(2)


# ---- what must be there before anything happens ------------------------------------------------


def newer_python() -> str | None:
    """Path of a Python that is new enough, when the one that runs this is not."""
    for minor in range(14, MINIMUM[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found:
            return found
    return None


def python_problem() -> str | None:
    if sys.version_info < MINIMUM:
        how = "brew install python@3.13" if MAC else "sudo apt install python3.11 python3.11-venv"
        return (
            f"Python {platform.python_version()} at {sys.executable} is too old; "
            f"{MINIMUM[0]}.{MINIMUM[1]} or newer is needed.\n"
            f"Install one ({how}), or name it: make demo PYTHON=/path/to/python3"
        )
    if importlib.util.find_spec("ensurepip") is None:
        return (
            "Python's venv module is incomplete (no ensurepip).\n"
            f"sudo apt install python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        )
    return None


def compiler() -> tuple[str, str]:
    """(name and version, problem); one of the two is empty."""
    advice = "xcode-select --install" if MAC else "sudo apt install g++"
    found = os.environ.get("CXX") or next(
        (name for name in ("c++", "g++", "clang++") if shutil.which(name)), None
    )
    if found is None:
        return "", f"No C++ compiler (c++, g++ or clang++) is on the PATH.\n{advice}"
    source = "#include <bit>\n#include <span>\nint main() { return std::popcount(0u); }\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "try.cc"
        path.write_text(source)
        command = [*found.split(), "-std=c++20", str(path), "-o", str(Path(folder) / "try")]
        try:
            tried = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return "", f"The C++ compiler {found!r} cannot be started: {error}.\n{advice}"
    if tried.returncode:
        first = (tried.stderr.strip() or "no message").splitlines()[0]
        return "", f"{found} cannot compile C++20 ({first}).\n{advice}, or set CXX to a newer one."
    version = subprocess.run(
        [*found.split(), "--version"], capture_output=True, text=True, check=False
    )
    return version.stdout.splitlines()[0] if version.stdout else found, ""


def disk_problem(need_gib: float, venv: Path) -> str | None:
    free = shutil.disk_usage(venv.parent).free / 2**30
    if free >= need_gib:
        return None
    return f"{free:.1f} GiB are free in {venv.parent}; about {need_gib:.1f} GiB are needed there."


def check_machine(purpose: str, venv: Path) -> None:
    need = 0.3 if (venv / "pyvenv.cfg").exists() else DISK_GIB[purpose]
    name, problem = compiler()
    problems = [python_problem(), problem, disk_problem(need, venv)]
    if any(problems):
        stop([text for text in problems if text])
    say(f"Python {platform.python_version()}, {name}: fine")


# ---- the steps -------------------------------------------------------------------------------


def run(title: str, command: list[str]) -> None:
    """Run a command, showing its last line and the time; its whole output only if it fails."""
    say(title)
    lines: list[str] = []
    live = sys.stdout.isatty()
    shown = time.monotonic()
    with subprocess.Popen(
        command, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            if live:
                print("\r\033[K    " + lines[-1].strip()[:90], end="", flush=True)
            elif line.startswith("Collecting ") or time.monotonic() - shown > QUIET:
                print("    " + lines[-1][:120], flush=True)
                shown = time.monotonic()
    if live:
        print("\r\033[K", end="", flush=True)
    if process.returncode:
        print("\n".join(lines[-60:]), file=sys.stderr)
        print(f"\n{title}: failed. The command was:\n  {' '.join(command)}", file=sys.stderr)
        raise SystemExit(1)


class Stamps:
    """What was done last, and with what, so that it is not done again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.done = json.loads(path.read_text())
        except (OSError, ValueError):
            self.done = {}

    def fresh(self, step: str, *inputs: str) -> tuple[bool, str]:
        digest = hashlib.sha256("\0".join(inputs).encode()).hexdigest()
        return self.done.get(step) == digest, digest

    def mark(self, step: str, digest: str) -> None:
        self.done[step] = digest
        self.path.write_text(json.dumps(self.done, indent=1))


def installed(python: Path, package: str) -> str | None:
    """Version of a package in the environment, without importing it."""
    code = (
        "import importlib.metadata as m, sys\n"
        "try: print(m.version(sys.argv[1]))\n"
        "except m.PackageNotFoundError: pass"
    )
    done = subprocess.run(
        [str(python), "-c", code, package], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None


def install_torch(python: Path, venv: Path) -> None:
    """The pinned torch, before anything that might pull in another build of it."""
    wanted = TORCH.split("==")[1]
    have = installed(python, "torch")
    if have is not None and have.split("+")[0] == wanted:
        say(f"torch {have} is already there")
        return
    pip = [str(python), "-m", "pip", "install", "-c", "constraints.txt", TORCH]
    if sys.platform == "linux" and platform.machine() == "x86_64":
        refuse_surprise(pip, venv)
    run(f"installing {TORCH}", pip)


def refuse_surprise(pip: list[str], venv: Path) -> None:
    """Say so before several GB of CUDA are fetched; stop if they would not fit."""
    report = venv / "torch-report.json"
    dry = [*pip, "--quiet", "--dry-run", "--no-deps", "--report", str(report)]
    if subprocess.run(dry, cwd=str(ROOT), capture_output=True, check=False).returncode:
        return  # the real installation fails the same way, with its message shown
    version = json.loads(report.read_text())["install"][0]["metadata"]["version"]
    if version.endswith("+cpu"):
        return
    problem = disk_problem(CUDA_GIB, venv)
    advice = "For the CPU build, give pip its index: PIP_EXTRA_INDEX_URL=... make demo"
    if problem:
        stop([f"pip would install the CUDA build of torch. {problem}\n{advice}"])
    say(f"pip finds the CUDA build of torch (several GB). {advice}")


def fill_environment(purpose: str, venv: Path, python: Path) -> None:
    """Create .venv and install the pinned set into it."""
    if not python.exists():
        run(f"creating {venv.name}", [sys.executable, "-m", "venv", "--clear", str(venv)])
    stamps = Stamps(venv / "mccl-setup.json")
    packages = PACKAGES[purpose]
    pins = (ROOT / "constraints.txt").read_text()
    fresh, digest = stamps.fresh("packages-" + purpose, pins, *packages)
    if not fresh:
        if purpose != "native":
            install_torch(python, venv)
        pip = [str(python), "-m", "pip", "install", "-c", "constraints.txt", *packages]
        run(f"installing {len(packages)} packages and what they need", pip)
        stamps.mark("packages-" + purpose, digest)
    if purpose == "native":
        return
    fresh, digest = stamps.fresh("mccl", (ROOT / "pyproject.toml").read_text(), str(ROOT))
    if not fresh:
        pip = [str(python), "-m", "pip", "install", "--no-deps", "--no-build-isolation"]
        # The library is built below, in place and incrementally; this adds the names alone.
        run("installing mccl (editable)", [*pip, "-C", "wheel.cmake=false", "-e", "."])
        stamps.mark("mccl", digest)


def build_library(venv: Path) -> None:
    """Build native/ incrementally and put the library where the package looks for it."""
    build = ROOT / "build" / "native"
    cmake = str(venv / "bin" / "cmake")
    if not (build / "build.ninja").exists():
        ninja = "-DCMAKE_MAKE_PROGRAM=" + str(venv / "bin" / "ninja")
        options = ["-G", "Ninja", ninja, "-DMCCL_WERROR=OFF", "-DCMAKE_BUILD_TYPE=Release"]
        configure = [cmake, "-S", "native", "-B", str(build), *options]
        run("configuring the native library", configure)
    run("building the native library", [cmake, "--build", str(build), "--target", "mccl"])
    name = "libmccl.dylib" if MAC else "libmccl.so"
    source, target = build / name, ROOT / "src" / "mccl" / "_lib" / name
    if target.exists() and target.read_bytes() == source.read_bytes():
        return
    target.parent.mkdir(exist_ok=True)
    # Replace, never overwrite: a process that has the old one mapped keeps it.
    shutil.copy2(source, str(target) + ".new")
    Path(str(target) + ".new").replace(target)
    say(f"new library: {target.relative_to(ROOT)}")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--for", dest="purpose", choices=sorted(PACKAGES), default="demo")
    parser.add_argument("--venv", type=Path, default=Path(".venv"))
    options = parser.parse_args()
    venv = (ROOT / options.venv).absolute()
    if sys.version_info < MINIMUM:
        other = newer_python()
        if other:
            say(f"Python {platform.python_version()} is too old; using {other}")
            os.execv(other, [other, *sys.argv])
    check_machine(options.purpose, venv)
    fill_environment(options.purpose, venv, venv / "bin" / "python")
    build_library(venv)
    say("ready")


if __name__ == "__main__":
    main()
