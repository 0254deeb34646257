"""Peers that run in processes of their own: OpenMPI (mpi4py) and MLX's ring.

Each is started anew for every round, so that nothing of it polls while others are measured.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mccl.bench import collectives, exact
from mccl.bench.launch import RankFailedError
from mccl.bench.record import Case
from mccl.bench.sweep import Cell, Effort

Process = tuple[list[str], dict[str, str]]
"""A command and the variables it needs beyond this process's own."""

_SCRIPT = Path(__file__).with_name("peer_rank.py")
_TCP_ONLY = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo"]
_SHARED = ["--mca", "pml", "ob1", "--mca", "btl", "vader,self"]


@dataclass(frozen=True)
class ExternalPeer:
    """A peer: whether it is here, what it can do, and how to run one round of it."""

    name: str
    about: str
    collectives: tuple[str, ...]
    missing: Callable[[], str | None]
    """None when it can run here, else what is missing."""
    start: Callable[[str, int, Path], list[Process]]
    """``(job, world, folder)`` to the commands and extra variables of its processes."""

    def round(
        self, cells: Sequence[Cell], world: int, effort: Effort, timeout: float
    ) -> list[Case]:
        """One round over the cells that it can do (float32 sums).

        Raises:
            RankFailedError: it failed or ran past ``timeout`` seconds; quotes what it said.
        """
        able = [cell for cell in cells if cell.collective in self.collectives]
        sizes = [_count(cell, world) * 4 for cell in able]
        job = json.dumps(
            {
                "cells": [[c.collective, size] for c, size in zip(able, sizes, strict=True)],
                "budget_s": effort.budget_s,
                "min_iterations": effort.min_iterations,
                "max_iterations": effort.max_iterations,
            }
        )
        with tempfile.TemporaryDirectory(prefix="mccl-peer-") as folder:
            output = _run(self.name, self.start(job, world, Path(folder)), timeout)
        return [
            self._case(json.loads(line), able, sizes, world)
            for line in output.splitlines()
            if line.startswith("{")
        ]

    def _case(
        self, found: dict[str, object], cells: list[Cell], sizes: list[int], world: int
    ) -> Case:
        number, samples = found["cell"], found["samples"]
        assert isinstance(number, int)
        assert isinstance(samples, list)
        factor = collectives.find(cells[number].collective).factor(world)
        labels = asdict(cells[number]) | {
            "ranks": world,
            "count": sizes[number] // 4,
            "nbytes": sizes[number],
            "requested": cells[number].nbytes,
            "factor": factor,
        }
        facts = {
            "wrong": float(str(found["wrong"])),
            "cpu_s": float(str(found["cpu_s"])),
            "wire_bytes": sizes[number] * factor * world * len(samples),
        }
        return Case(self.name, labels, [samples], facts=facts)


def _count(cell: Cell, world: int) -> int:
    bench = collectives.find(cell.collective)
    return collectives.element_count(bench, cell.nbytes, exact.DTYPES["float32"], world)


def _run(name: str, commands: list[Process], timeout: float) -> str:
    """Run the processes to their end; the standard output of the first.

    The first to fail ends the others: a peer whose partner is gone may wait for ever.
    """
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in commands]
        errors = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in commands]
        processes = []
        for (command, variables), out, error in zip(commands, outputs, errors, strict=True):
            process = subprocess.Popen(
                command,
                env=os.environ | variables,
                stdout=out,
                stderr=error,
                start_new_session=True,
            )
            stack.callback(_end, process)
            processes.append(process)
        deadline = time.monotonic() + timeout
        while any(process.poll() is None for process in processes):
            if any(process.poll() for process in processes):
                break
            if time.monotonic() > deadline:
                raise RankFailedError(f"{name} gave no result within {timeout:.0f} s")
            time.sleep(0.05)
        for process, error in zip(processes, errors, strict=True):
            if process.poll():
                error.seek(0)
                text = error.read()[-2000:]
                raise RankFailedError(f"{name} failed, exit code {process.returncode}: {text}")
        outputs[0].seek(0)
        return outputs[0].read()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _missing_mpi() -> str | None:
    if shutil.which("mpirun") is None:
        return "mpirun not installed (Debian: openmpi-bin)"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py not installed (pip install mpi4py)"
    return None


def _start_mpi(options: list[str]) -> Callable[[str, int, Path], list[Process]]:
    def start(job: str, world: int, folder: Path) -> list[Process]:
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command = [
            "mpirun",
            *root,
            "--oversubscribe",
            "--bind-to",
            "none",
            *options,
            "-n",
            str(world),
            sys.executable,
            str(_SCRIPT),
            "mpi",
            job,
        ]
        return [(command, {"OMP_NUM_THREADS": "1"})]

    return start


def _missing_mlx() -> str | None:
    if importlib.util.find_spec("mlx") is None:
        return "mlx not installed (pip install 'mlx[cpu]')"
    return None


def _start_mlx(job: str, world: int, folder: Path) -> list[Process]:
    hosts = folder / "hosts.json"
    hosts.write_text(json.dumps([[f"127.0.0.1:{port}"] for port in _free_ports(world)]))
    command = [sys.executable, str(_SCRIPT), "mlx", job]
    return [
        (command, {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(hosts), "OMP_NUM_THREADS": "1"})
        for rank in range(world)
    ]


def _free_ports(number: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    ports = [int(s.getsockname()[1]) for s in sockets]
    for s in sockets:
        s.close()
    return ports


_ALL = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")

OPENMPI_TCP = ExternalPeer(
    "openmpi-tcp",
    "OpenMPI over TCP only, through mpi4py",
    _ALL,
    _missing_mpi,
    _start_mpi(_TCP_ONLY),
)
OPENMPI_SHM = ExternalPeer(
    "openmpi-shm",
    "OpenMPI over shared memory: no TCP, for scale",
    _ALL,
    _missing_mpi,
    _start_mpi(_SHARED),
)
MLX_RING = ExternalPeer(
    "mlx-ring", "MLX's TCP ring on the CPU", ("all_reduce",), _missing_mlx, _start_mlx
)
