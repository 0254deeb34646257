"""Facts about the machine that a figure was measured on."""

from __future__ import annotations

import os
import platform
import socket
from dataclasses import dataclass
from pathlib import Path

import torch

import mccl


@dataclass(frozen=True)
class Machine:
    """What a reader needs to judge a figure. Empty strings and zeros mean unknown."""

    cpu: str
    cores: int
    memory_bytes: int
    os: str
    kernel: str
    python: str
    torch: str
    mccl: str
    accelerator: str
    interfaces: dict[str, int]
    """Interface name to MTU in bytes."""
    tcp_congestion_control: str

    def sentence(self) -> str:
        """One line for captions."""
        gib = self.memory_bytes / 2**30
        device = f", {self.accelerator}" if self.accelerator else ""
        return (
            f"{self.cores} cores {self.cpu}, {gib:.0f} GiB{device}, {self.os} {self.kernel}, "
            f"torch {self.torch}, mccl {self.mccl}"
        )


def describe_machine() -> Machine:
    """The facts of this machine."""
    return Machine(
        cpu=_cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else _cores(),
        memory_bytes=_memory_bytes(),
        os=platform.system() if platform.system() != "Darwin" else f"macOS {platform.mac_ver()[0]}",
        kernel=platform.release(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        mccl=mccl.__version__,
        accelerator=_accelerator(),
        interfaces=_interfaces(),
        tcp_congestion_control=_read(Path("/proc/sys/net/ipv4/tcp_congestion_control")),
    )


def _cores() -> int:
    return os.cpu_count() or 0


def _read(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _cpu_name() -> str:
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    if "SC_PHYS_PAGES" not in os.sysconf_names:
        return 0
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _accelerator() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()}x {torch.cuda.get_device_name(0)}"
    return "Apple GPU (MPS)" if torch.backends.mps.is_available() else ""


def _interfaces() -> dict[str, int]:
    mtus: dict[str, int] = {}
    for _, name in socket.if_nameindex():
        text = _read(Path("/sys/class/net") / name / "mtu")
        mtus[name] = int(text) if text else 0
    return mtus
