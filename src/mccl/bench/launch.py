"""Start ranks, give them a Store to meet at, collect what they return, leave nothing behind.

Ranks are forked from one process that has imported torch already (``multiprocessing``'s
forkserver), so 24 ranks start in a second and share the pages of torch; where fork is not safe
(macOS) they are spawned. They meet and exchange small objects over a ``TCPStore``, never over the
backend that is being measured. A rank dies with the process that started it, every run has a hard
time limit, and whatever is left at its end is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed.rendezvous import rendezvous

from mccl.config import Launch
from mccl.errors import MCCLError, UsageError

Worker = Callable[["RankContext", dict[str, Any]], Any]

_PRELOAD = ["torch", "torch.distributed", "numpy", "mccl.bench.sweep"]
CLONE_NEWNET = 0x40000000


class RankFailedError(MCCLError):
    """At least one rank raised, died or ran past the time limit; the message quotes each."""


@dataclass
class RankContext:
    """What a rank knows of its run. ``address`` is the one its peers reach it at."""

    rank: int
    world: int
    address: str
    store: Store
    interface: str = ""
    timeout: timedelta = timedelta(minutes=10)
    _meetings: int = 0
    _groups: dict[str, dist.ProcessGroup] = field(default_factory=dict)

    def gather(self, value: Any) -> list[Any]:
        """Every rank's ``value`` (JSON), in rank order, on every rank. Also a barrier."""
        self._meetings += 1
        prefix = f"meet/{self._meetings}"
        self.store.set(f"{prefix}/{self.rank}", json.dumps(value))
        keys = [f"{prefix}/{rank}" for rank in range(self.world)]
        self.store.wait(keys, self.timeout)
        return [json.loads(text) for text in self.store.multi_get(keys)]

    def share(self, value: Any) -> Any:
        """Rank 0's ``value`` on every rank."""
        return self.gather(value if self.rank == 0 else None)[0]

    def group(self, backend: str) -> dist.ProcessGroup:
        """The group of all ranks over ``backend``, made on first request (on all ranks alike)."""
        if backend not in self._groups:
            if not dist.is_initialized():
                dist.init_process_group(
                    backend,
                    store=PrefixStore("pg", self.store),
                    rank=self.rank,
                    world_size=self.world,
                    timeout=self.timeout,
                )
                self._groups[backend] = _world_group()
            else:
                self._groups[backend] = dist.new_group(backend=backend, timeout=self.timeout)
        return self._groups[backend]

    def close(self) -> None:
        """Leave every group in order."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._groups.clear()


def _world_group() -> dist.ProcessGroup:
    group = dist.group.WORLD
    if group is None:
        raise RankFailedError("the default process group is gone right after it was made")
    return group


class Launcher(Protocol):
    """Where ranks run."""

    title: str
    """For captions: ``loopback``, ``8 hosts at 200 Mbit/s``."""
    worlds: tuple[int, ...] | None
    """World sizes it can run, None for any."""
    facts: dict[str, Any]
    """What a record should say of it."""

    def run(
        self, worker: Worker, options: dict[str, Any], world: int, timeout: float
    ) -> list[Any] | None:
        """``worker(context, options)`` on every rank; the results in rank order.

        None on a process that is not the one to report (a rank of a job started elsewhere).

        Raises:
            RankFailedError: a rank failed, died or outlived ``timeout`` seconds.
        """


@dataclass
class Placement:
    """Where one rank goes: its address, variables, and network namespace descriptor path."""

    address: str
    interface: str
    environment: Mapping[str, str] = field(default_factory=dict)
    namespace: str | None = None


def die_with_parent(pipe: Connection) -> None:
    """Kill this process when the other end of ``pipe`` closes, as it does when its owner dies.

    The forkserver itself outlives its owner while ranks live, so asking the kernel for a signal
    at the parent's death would not do.
    """

    def watch() -> None:
        wait([pipe])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="die-with-parent", daemon=True).start()


def enter_namespace(path: str) -> None:
    """Move the calling thread into the network namespace at ``path`` (Linux, root).

    Raises:
        OSError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"cannot enter network namespace {path}: {os.strerror(code)}")
    finally:
        os.close(descriptor)


def _rank_main(
    pipe: Connection,
    worker: Worker,
    options: dict[str, Any],
    rank: int,
    world: int,
    place: Placement,
    store: tuple[str, int],
    timeout: float,
) -> None:
    die_with_parent(pipe)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when ranks end
    if place.namespace is not None:
        enter_namespace(place.namespace)
    os.environ.update(
        MASTER_ADDR=store[0],
        MASTER_PORT=str(store[1]),
        RANK=str(rank),
        WORLD_SIZE=str(world),
        # All share this machine's cores, also where each has a network namespace of its own.
        LOCAL_WORLD_SIZE=str(world),
        LOCAL_RANK=str(rank),
        **place.environment,
    )
    torch.set_num_threads(1)
    limit = timedelta(seconds=timeout)
    try:
        client = TCPStore(store[0], store[1], is_master=False, timeout=limit)
        context = RankContext(rank, world, place.address, client, place.interface, limit)
        result = worker(context, options)
        context.gather("done")
        context.close()
        pipe.send(("result", result))
    except Exception:  # noqa: BLE001 - reported by the parent, with the rank
        pipe.send(("error", traceback.format_exc()))
        raise SystemExit(1) from None


class _Crew:
    """The rank processes of one run and what each has reported so far."""

    def __init__(self) -> None:
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[Connection] = []
        self._results: dict[int, Any] = {}
        self._errors: dict[int, str] = {}

    def start(self, context: Any, arguments: tuple[Any, ...]) -> None:
        """Start the next rank; ``arguments`` are those of ``_rank_main`` after the pipe."""
        ours, theirs = context.Pipe()
        process = context.Process(target=_rank_main, args=(theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        self._processes.append(process)
        self._pipes.append(ours)

    def collect(self, timeout: float, patience: float = 5.0) -> list[Any]:
        """Wait for all results; once one rank fails the others get ``patience`` seconds."""
        deadline = time.monotonic() + timeout
        open_pipes = {pipe: rank for rank, pipe in enumerate(self._pipes)}
        while open_pipes:
            left = deadline - time.monotonic()
            ready = wait(list(open_pipes), max(0.0, left))
            if not ready:
                for rank in open_pipes.values():
                    self._errors.setdefault(rank, f"no result within {timeout:.0f} s")
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                self._read(pipe, open_pipes.pop(pipe))
            if self._errors:
                deadline = min(deadline, time.monotonic() + patience)
                timeout = patience
        if self._errors:
            report = "\n".join(f"rank {r}: {self._errors[r].strip()}" for r in sorted(self._errors))
            raise RankFailedError(
                f"{len(self._errors)} of {len(self._pipes)} ranks failed\n{report}"
            )
        return [self._results[rank] for rank in range(len(self._pipes))]

    def _read(self, pipe: Connection, rank: int) -> None:
        try:
            kind, value = pipe.recv()
        except EOFError:
            self._processes[rank].join(5)
            self._errors[rank] = f"died, exit code {self._processes[rank].exitcode}"
            return
        (self._results if kind == "result" else self._errors)[rank] = value

    def end(self, patience: float) -> None:
        """Let ranks that reported finish on their own for ``patience`` seconds, kill the rest."""
        deadline = time.monotonic() + patience
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
            process.close()
        for pipe in self._pipes:
            pipe.close()


def run_placed(
    worker: Worker,
    options: dict[str, Any],
    places: list[Placement],
    store: TCPStore,
    store_address: str,
    timeout: float,
) -> list[Any]:
    """Run one rank a place against a Store that this process serves; results in rank order."""
    method = "forkserver" if sys.platform == "linux" else "spawn"
    context = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload(_PRELOAD)
    crew = _Crew()
    finished = False
    try:
        for rank, place in enumerate(places):
            where = (store_address, store.port)
            crew.start(context, (worker, options, rank, len(places), place, where, timeout))
        results = crew.collect(timeout)
        finished = True
        return results
    finally:
        crew.end(10.0 if finished else 0.0)


@dataclass
class LocalLauncher:
    """Ranks on this machine, over its loopback interface."""

    title: str = "loopback"
    worlds: tuple[int, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def run(
        self, worker: Worker, options: dict[str, Any], world: int, timeout: float
    ) -> list[Any] | None:
        """See ``Launcher.run``."""
        interface = "lo" if sys.platform == "linux" else "lo0"
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        variables = interface_environment(interface) | dict(self.environment)
        places = [Placement("127.0.0.1", interface, variables) for _ in range(world)]
        return run_placed(worker, options, places, store, "127.0.0.1", timeout)


@dataclass
class JoinedLauncher:
    """This process is one rank of a job that an elastic launcher started (``mccl run``)."""

    title: str = "joined job"
    worlds: tuple[int, ...] | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    _store: Store | None = None
    _rank: int = 0
    _runs: int = 0

    def __post_init__(self) -> None:
        self._store, self._rank, world = next(iter(rendezvous("env://")))
        self.worlds = (world,)

    def run(
        self, worker: Worker, options: dict[str, Any], world: int, timeout: float
    ) -> list[Any] | None:
        """See ``Launcher.run``; ``world`` must be that of the job."""
        if self.worlds != (world,) or self._store is None:
            raise UsageError(f"this job has {self.worlds} ranks; {world} were asked for")
        self._runs += 1
        store = PrefixStore(f"bench/{self._runs}", self._store)
        limit = timedelta(seconds=timeout)
        context = RankContext(self._rank, world, _own_address(), store, "", limit)
        results = context.gather(worker(context, options))
        context.close()
        return results if self._rank == 0 else None


def _own_address() -> str:
    """The address of the interface that routes to the job's master."""
    master = Launch.from_env().master_addr or "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((master, 9))
        return str(probe.getsockname()[0])


def interface_environment(interface: str) -> dict[str, str]:
    """Variables that bind every backend measured to one interface."""
    return {"MCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}


def choose_launcher() -> Launcher:
    """Join the job that started this process, if any; else ranks on this machine."""
    return JoinedLauncher() if dist.is_torchelastic_launched() else LocalLauncher()


@contextlib.contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that ``finally`` blocks run."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
