"""One trial of a storm: real processes, one fault, and a verdict on what came of it.

The ranks start from a fork server that has torch loaded. A trial whose fault unplugs a host gives
each rank a host of its own, a network namespace on an emulated switch (Linux, root).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from mccl.bench.cluster import Cluster
from mccl.bench.launch import enter_namespace
from mccl.testing.faults import LINK_KINDS, Fault, Kind, read_marker
from mccl.testing.programs import Outcome, play

PEER_TIMEOUT = 3.0
"""MCCL_PEER_TIMEOUT of the ranks."""

LIMIT = 120.0
"""Seconds after which a rank that has said nothing hangs."""

GROUP_TIMEOUT = timedelta(seconds=45)
"""Of every collective; longer than any other limit, so only what slipped through them meets it."""

RATE = 1e9
"""Bits a second of an emulated host's link."""

ENDING = frozenset({Kind.KILL, Kind.STOP})
"""After these the faulty rank itself has nothing to say."""

_context = multiprocessing.get_context("forkserver")
# torch._dynamo: what DDP imports when it is made, most of a trial's time otherwise.
_context.set_forkserver_preload(["torch", "torch._dynamo", "mccl.testing.programs"])


@dataclass(frozen=True)
class Trial:
    """One run of one program with one fault."""

    seed: str
    world: int
    program: str
    fault: Fault
    checksum: bool = True
    """Without it a flipped bit of a payload is not seen: the storm must find the wrong result."""


@dataclass
class Verdict:
    """What came of a trial."""

    trial: Trial
    fired: bool
    hung: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    quiet: list[int] = field(default_factory=list)
    """Survivors that raised nothing, or whose next call did not raise."""
    alarms: list[str] = field(default_factory=list)
    """Errors where none was due."""
    blamed: list[bool] = field(default_factory=list)
    """Whether each survivor named the right culprit."""
    seconds: list[float] = field(default_factory=list)
    """From the fault to each survivor's error."""
    texts: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether all is as it must be."""
        bad = self.hung or self.wrong or self.quiet or self.alarms or not all(self.blamed)
        return self.fired and not bad


@dataclass(frozen=True)
class Seat:
    """Where a rank of a trial runs."""

    rank: int
    store: tuple[str, int]
    interface: str
    namespace: str | None = None
    unplug: tuple[str, ...] | None = None
    """Command that takes its host off the network."""


def run(trial: Trial) -> Verdict:
    """Play one trial and judge it; leaves no process and no namespace behind."""
    with (
        tempfile.TemporaryDirectory(prefix="mccl-storm-") as folder,
        (_hosts if trial.fault.kind is Kind.UNPLUG else _loopback)(trial.world) as (_, seats),
    ):
        marker = Path(folder) / "fired"
        processes: list[Any] = []
        waiting: dict[connection.Connection, int] = {}
        try:
            for seat in seats:
                reader, writer = _context.Pipe(duplex=False)
                process = _context.Process(
                    target=_rank, args=(writer, seat, trial, marker), daemon=True
                )
                process.start()
                writer.close()
                processes.append(process)
                waiting[reader] = seat.rank
            return _judge(trial, _collect(trial, waiting), marker)
        finally:
            for process in processes:
                process.kill()
                process.join()


Seats = tuple[TCPStore, list[Seat]]
"""With the store they meet at, which lives as long as it is held."""


@contextlib.contextmanager
def _loopback(world: int) -> Iterator[Seats]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield store, [Seat(rank, ("127.0.0.1", store.port), "") for rank in range(world)]


@contextlib.contextmanager
def _hosts(world: int) -> Iterator[Seats]:
    with Cluster(world, RATE) as cluster:
        listener = cluster.listen()
        where = (cluster.switch_address, listener.getsockname()[1])
        with cluster.inside_switch():
            store = TCPStore(
                *where,
                is_master=True,
                wait_for_workers=False,
                master_listen_fd=listener.detach(),
            )
        yield (
            store,
            [
                Seat(
                    rank,
                    where,
                    cluster.interface(rank),
                    cluster.namespace(rank),
                    tuple(cluster.cutting(rank)),
                )
                for rank in range(world)
            ],
        )


def _collect(trial: Trial, waiting: dict[connection.Connection, int]) -> dict[int, Outcome | None]:
    """Outcomes by rank; None for a rank that ended without a word. A hung one is absent."""
    dies = trial.fault.kind in ENDING
    expected = trial.world - dies
    found: dict[int, Outcome | None] = {}
    deadline = time.monotonic() + LIMIT
    while waiting and sum(rank != trial.fault.rank or not dies for rank in found) < expected:
        ready = connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for reader in [reader for reader in waiting if reader in ready]:
            rank = waiting.pop(reader)
            try:
                found[rank] = reader.recv()
            except EOFError:
                found[rank] = None
    return found


def _judge(trial: Trial, found: dict[int, Outcome | None], marker: Path) -> Verdict:
    fault, fired = trial.fault, read_marker(marker)
    verdict = Verdict(trial, fired is not None)
    others = set(range(trial.world)) - {fault.rank}
    guilty = {fault.rank, *([fired.peer] if fired and fault.kind in LINK_KINDS else [])}
    for rank in range(trial.world):
        if rank == fault.rank and fault.kind in ENDING and fired:
            continue
        outcome = found.get(rank)
        if rank not in found:
            verdict.hung.append(rank)
            continue
        if outcome is None:
            verdict.alarms.append(f"rank {rank} ended without a word")
            continue
        verdict.wrong += [f"rank {rank} {text}" for text in outcome.wrong]
        if outcome.error is not None:
            verdict.texts.append(f"rank {rank}: {outcome.error}: {outcome.text}")
        if fired is None or fault.kind is Kind.SLOW:
            if outcome.error is not None:
                verdict.alarms.append(f"rank {rank} raised {outcome.error}")
            continue
        if outcome.error is None or not outcome.kept:
            verdict.quiet.append(rank)
        if outcome.error is not None:
            # A host that is cut off cannot tell that the others are not.
            alone = rank == fault.rank and fault.kind is Kind.UNPLUG
            verdict.blamed.append(outcome.peer in others if alone else outcome.peer in guilty)
            verdict.seconds.append(outcome.at - fired.time)
    return verdict


def _rank(writer: Any, seat: Seat, trial: Trial, marker: Path) -> None:
    """One process of a trial."""
    if seat.namespace is not None:
        enter_namespace(seat.namespace)
    host, port = seat.store
    # The fork server's children inherit its environment; what the group reads is set here.
    os.environ.update(
        RANK=str(seat.rank),
        WORLD_SIZE=str(trial.world),
        LOCAL_RANK=str(seat.rank),
        LOCAL_WORLD_SIZE=str(trial.world),
        MASTER_ADDR=host,
        MASTER_PORT=str(port),
        MCCL_PEER_TIMEOUT=str(PEER_TIMEOUT),
        MCCL_CHECKSUM=str(int(trial.checksum)),
        **({"MCCL_SOCKET_IFNAME": seat.interface} if seat.interface else {}),
    )
    torch.set_num_threads(1)
    store = TCPStore(host, port, is_master=False)
    dist.init_process_group(
        "mccl", store=store, rank=seat.rank, world_size=trial.world, timeout=GROUP_TIMEOUT
    )
    unplug = partial(subprocess.run, seat.unplug, check=True, timeout=20) if seat.unplug else None
    outcome = play(seat.rank, trial.world, trial.program, trial.seed, trial.fault, marker, unplug)
    writer.send(outcome)
    if outcome.error is None:
        # A group that is fine ends together: else the first to leave would be the fault.
        with contextlib.suppress(RuntimeError):
            dist.barrier()
    dist.destroy_process_group()
    # Interpreters are torn down in other tests; here it would take most of the time.
    os._exit(0)
