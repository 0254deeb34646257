"""Run a function on N real processes, one rank each, inside a hard time limit.

A fork server imports torch once; every rank is forked from it in milliseconds. Whatever
happens, no process outlives the call: what a rank raises comes back as text, and ranks that
are still running when time is up are killed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib.util
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

GRACE = 10.0
"""Seconds the other ranks get to report once one has failed."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed", "torch.distributed.fsdp", "mccl"])


class RanksError(AssertionError):
    """At least one rank raised, died or ran out of time."""


def run(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    limit: float = 60.0,
    timeout: float = 30.0,
    env: Mapping[str, str] | None = None,
    group: bool = True,
    may_die: Collection[int] = (),
) -> list[Any]:
    """What ``function(rank, world_size, *args)`` returns on every rank.

    ``limit``: seconds until everything is killed. ``timeout``: that of the default group, which
    exists when ``function`` runs unless ``group`` is False. ``may_die``: ranks that may end
    without a result (None then).
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    task = (Path(function.__code__.co_filename), function.__qualname__, args)
    processes, readers = [], []
    try:
        for rank in range(world_size):
            reader, writer = _context.Pipe(duplex=False)
            place = (rank, world_size, store.port, timeout, dict(env or {}), group)
            process = _context.Process(target=_main, args=(writer, task, place), daemon=True)
            process.start()
            writer.close()
            processes.append(process)
            readers.append(reader)
        return _collect(readers, time.monotonic() + limit, frozenset(may_die))
    finally:
        for process in processes:
            process.join(0.5 if process.exitcode is None else 0)
            if process.is_alive():
                process.kill()
            process.join()
        for reader in readers:
            reader.close()


def _collect(
    readers: list[connection.Connection], deadline: float, may_die: frozenset[int]
) -> list[Any]:
    results: list[Any] = [None] * len(readers)
    failures: dict[int, str] = {}
    waiting = {reader: rank for rank, reader in enumerate(readers)}
    while waiting:
        ready = connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
        if not ready:
            for rank in waiting.values():
                failures[rank] = "no answer in time: killed"
            break
        for reader in ready:
            rank = waiting.pop(reader)  # type: ignore[index]
            try:
                good, value = reader.recv()  # type: ignore[union-attr]
            except EOFError:
                good, value = rank in may_die, "the process ended without a word"
                value = None if good else value
            if good:
                results[rank] = value
            else:
                failures[rank] = value
                deadline = min(deadline, time.monotonic() + GRACE)
    if failures:
        texts = (f"--- rank {rank} ---\n{text}" for rank, text in sorted(failures.items()))
        raise RanksError("\n".join(texts))
    return results


def _main(writer: connection.Connection, task: Any, place: Any) -> None:
    rank, world_size, port, timeout, env, group = place
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        TORCHELASTIC_USE_AGENT_STORE="True",
        **env,
    )
    faulthandler.enable()
    torch.set_num_threads(1)
    try:
        function, args = _function(task[0], task[1]), task[2]
        if group:
            store = dist.TCPStore("127.0.0.1", port, is_master=False)
            dist.init_process_group(
                "mccl",
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=timeout),
            )
        writer.send((True, function(rank, world_size, *args)))
        if dist.is_initialized():
            dist.destroy_process_group()
        # Tearing the interpreter down takes longer than most tests; one test does it in full.
        os._exit(0)
    except BaseException:  # noqa: BLE001 - whatever ended the rank is the report
        with contextlib.suppress(OSError):
            writer.send((False, traceback.format_exc()))
        sys.stderr.flush()
        os._exit(1)


def _function(path: Path, name: str) -> Callable[..., Any]:
    # By path, because pytest's importlib mode gives test modules names nobody else can import.
    root = str(path.parents[2])
    if root not in sys.path:
        sys.path.insert(0, root)
    module_name = f"_ranks_{path.stem}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part)
    return function  # type: ignore[no-any-return]
