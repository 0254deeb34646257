"""The machine: chip, cores, memory, accelerator, limits of the system."""

from __future__ import annotations

import os
import platform
import re
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mccl.doctor.finding import Finding, Status

SECTION = "machine"
MAC = platform.system() == "Darwin"
NEEDED_FILES = 1024
"""Descriptors: a store, a listener, two links and one control link for each of some 200 peers."""
VECTORS = ("avx512f", "avx2", "f16c", "asimd", "fphp", "bf16", "sse4_2", "crc32")


def examine() -> Iterator[Finding]:
    """Operating system, chip, memory, accelerator and descriptor limit."""
    name = f"macOS {platform.mac_ver()[0]}" if MAC else platform.system()
    kernel = f"{name} {platform.release()} {platform.machine()}"
    yield Finding(SECTION, "system", Status.OK, kernel)
    yield Finding(SECTION, "chip", Status.OK, f"{_chip()}, {os.cpu_count()} cores")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield Finding(SECTION, "memory", Status.OK, f"{memory:.0f} GiB")
    yield Finding(SECTION, "accelerator", Status.OK, _accelerator())
    yield _files()


def _chip() -> str:
    if MAC:
        return sysctl("machdep.cpu.brand_string") or platform.processor()
    text = read(Path("/proc/cpuinfo"))
    model = re.search(r"^(?:model name|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    have = [name for name in VECTORS if flags and name in flags[1].split()]
    shown = f" ({', '.join(have)})" if have else ""
    return f"{model[1] if model else platform.machine()}{shown}"


def _accelerator() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)} (cuda)"
    if torch.backends.mps.is_available():
        return "Apple GPU (mps)"
    return "none that torch can use; tensors live on the CPU"


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= NEEDED_FILES or soft == resource.RLIM_INFINITY:
        return Finding(SECTION, "open files", Status.OK, f"{soft} a process")
    return Finding(
        SECTION,
        "open files",
        Status.WARN,
        f"{soft} a process (hard limit {hard})",
        f"Enough for small jobs; for many peers: ulimit -n {NEEDED_FILES}",
    )


def sysctl(name: str) -> str:
    """A value of macOS's sysctl; empty where it is not known."""
    done = subprocess.run(
        ["sysctl", "-n", name], capture_output=True, text=True, timeout=10, check=False
    )
    return done.stdout.strip()


def read(path: Path) -> str:
    """A file of the system; empty where it is not there."""
    try:
        return path.read_text()
    except OSError:
        return ""
