"""One rank of a peer that is no torch backend. A script of its own: numpy and the peer, no torch.

``python peer_rank.py KIND JOB`` where KIND is ``mpi`` or ``mlx`` and JOB is JSON with ``cells``
(``[[collective, bytes], …]``), ``budget_s``, ``min_iterations``, ``max_iterations``. Rank 0
prints one line of JSON, ``[{"cell": …, "samples": […], "cpu_s": …, "wrong": …}, …]``. The timing
loop is that of ``sweep._timed``.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


class MPI:
    """mpi4py's upper-case (buffer) calls, in place where MPI has it."""

    def __init__(self) -> None:
        import mpi4py.MPI

        self._api = mpi4py.MPI
        self._comm = self._api.COMM_WORLD
        self.rank, self.world = self._comm.Get_rank(), self._comm.Get_size()

    def barrier(self) -> None:
        self._comm.Barrier()

    def share(self, value: Any) -> Any:
        return self._comm.bcast(value, 0)

    def gather(self, value: Any) -> list[Any]:
        return list(self._comm.allgather(value))

    def prepare(
        self, collective: str, count: int
    ) -> tuple[Callable[[], object], Callable[[], int]]:
        """The call to time, and a check to run once after refilling."""
        api, comm, rank, world = self._api, self._comm, self.rank, self.world
        data = np.full(count, rank + 1, np.float32)
        part = count // world
        total = world * (world + 1) / 2
        if collective == "all_reduce":
            return lambda: comm.Allreduce(api.IN_PLACE, data), lambda: _refilled(
                data, rank + 1, lambda: comm.Allreduce(api.IN_PLACE, data), total
            )
        if collective == "broadcast":
            return lambda: comm.Bcast(data, 0), lambda: _refilled(
                data, 1 if rank == 0 else 0, lambda: comm.Bcast(data, 0), 1
            )
        if collective == "all_gather":
            own = np.full(part, 1, np.float32)
            return lambda: comm.Allgather(own, data[: part * world]), lambda: _refilled(
                data, 1, lambda: comm.Allgather(own, data[: part * world]), 1
            )
        out = np.empty(part, np.float32)
        sent = data[: part * world]
        return lambda: comm.Reduce_scatter_block(sent, out), lambda: int((out != total).sum())


class MLX:
    """MLX's TCP ring on the CPU."""

    def __init__(self) -> None:
        mx: Any = importlib.import_module("mlx.core")
        mx.set_default_device(mx.cpu)
        self._mx = mx
        self._group = mx.distributed.init(strict=True, backend="ring")
        self.rank, self.world = self._group.rank(), self._group.size()

    def barrier(self) -> None:
        self._mx.eval(self._mx.distributed.all_sum(self._mx.ones(8), group=self._group))

    def share(self, value: Any) -> Any:
        own = self._mx.array([float(value) if self.rank == 0 else 0.0])
        return self._mx.distributed.all_sum(own, group=self._group).tolist()[0]

    def gather(self, value: Any) -> list[Any]:
        # The ring carries arrays only; rank 0 reports its own view.
        return [value]

    def prepare(
        self, collective: str, count: int
    ) -> tuple[Callable[[], object], Callable[[], int]]:
        """The call to time, and a check; MLX has all_reduce out of place."""
        mx, group = self._mx, self._group
        data = mx.full((count,), self.rank + 1.0)
        mx.eval(data)
        total = self.world * (self.world + 1) / 2

        def call() -> None:
            mx.eval(mx.distributed.all_sum(data, group=group))

        def wrong() -> int:
            return int((mx.distributed.all_sum(data, group=group) != total).sum().item())

        return call, wrong


def _refilled(data: Any, value: float, call: Callable[[], object], expected: float) -> int:
    data.fill(value)
    call()
    return int((data != expected).sum())


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _measure(peer: MPI | MLX, job: dict[str, Any], number: int) -> dict[str, Any]:
    collective, nbytes = job["cells"][number]
    call, wrong = peer.prepare(collective, max(nbytes // 4, 1))
    peer.barrier()
    for _ in range(2):
        start = time.perf_counter()
        call()
        last = time.perf_counter() - start
    last = peer.share(last)
    wanted = int(job["budget_s"] / max(last, 1e-7))
    iterations = max(job["min_iterations"], min(job["max_iterations"], wanted))
    call()
    samples = []
    cpu = _cpu()
    for _ in range(iterations):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return {"cell": number, "samples": samples, "cpu_s": _cpu() - cpu, "wrong": wrong()}


def main() -> None:
    """Measure every cell of the job; rank 0 prints."""
    kind, job = sys.argv[1], json.loads(sys.argv[2])
    peer: MPI | MLX = MPI() if kind == "mpi" else MLX()
    for number in range(len(job["cells"])):
        ranks = peer.gather(_measure(peer, job, number))
        if peer.rank == 0:
            columns = zip(*(rank["samples"] for rank in ranks), strict=True)
            merged = {
                "cell": number,
                "samples": [sum(column) / len(ranks) for column in columns],
                "cpu_s": sum(rank["cpu_s"] for rank in ranks) * (peer.world / len(ranks)),
                "wrong": sum(rank["wrong"] for rank in ranks),
            }
            print(json.dumps(merged), flush=True)


if __name__ == "__main__":
    main()
