"""A barrier that names every rank that did not come.

It runs through the c10d Store, not through the group's connections, so that it still answers
when those are stuck, and a failed one leaves the group as it was. Rank 0 collects arrivals and
publishes the verdict; the others wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from mccl.errors import CollectiveTimeoutError, RemoteError, StoreError, UsageError
from mccl.process_group.options import microseconds

_PASSED = "passed"
_FAILED = "failed:"


class MonitoredBarrier:
    """The monitored barriers of one group, numbered so that they never mix."""

    def __init__(self, store: Store, rank: int, size: int, global_ranks: Sequence[int]) -> None:
        self._store = PrefixStore("monitored_barrier", store)
        self._rank = rank
        self._size = size
        self._global_ranks = list(global_ranks)
        self._round = 0

    def run(self, timeout: timedelta, wait_all_ranks: bool) -> None:
        """Return once all ranks have called; see ``monitored_barrier``."""
        microseconds(timeout)
        number, self._round = self._round, self._round + 1
        deadline = time.monotonic() + timeout.total_seconds()
        if self._rank == 0:
            self._collect(number, timeout, deadline, wait_all_ranks)
        else:
            self._store.set(f"{number}/{self._rank}", "")
            self._follow(number, timeout, deadline)

    def _collect(
        self, number: int, timeout: timedelta, deadline: float, wait_all_ranks: bool
    ) -> None:
        missing = [
            rank for rank in range(1, self._size) if not self._arrived(f"{number}/{rank}", deadline)
        ]
        if not missing:
            self._store.set(f"{number}/verdict", _PASSED)
            return
        ranks = [self._global_ranks[rank] for rank in missing]
        shown = ranks if wait_all_ranks else ranks[:1]
        subject = "Rank" if len(shown) == 1 else "Ranks"
        names = ", ".join(map(str, shown))
        text = (
            f"{subject} {names} failed to pass monitoredBarrier in "
            f"{timeout / timedelta(milliseconds=1):g} ms"
        )
        self._store.set(f"{number}/verdict", _FAILED + text)
        others = "" if len(shown) == len(ranks) else f" (missing in all: {ranks})"
        raise CollectiveTimeoutError(
            f"[rank {self._global_ranks[0]}] Rank {self._global_ranks[0]} timed out in "
            f"monitoredBarrier: {text}{others}; look at what those ranks are doing",
            rank=self._global_ranks[0],
            peer=ranks[0],
            collective="monitored_barrier",
            waited=timeout.total_seconds(),
        )

    def _follow(self, number: int, timeout: timedelta, deadline: float) -> None:
        rank = self._global_ranks[self._rank]
        # Rank 0 may arrive late itself and then gives everyone else its whole timeout.
        if not self._arrived(f"{number}/verdict", deadline + timeout.total_seconds()):
            raise CollectiveTimeoutError(
                f"[rank {rank}] Rank {rank} timed out in monitoredBarrier after "
                f"{timeout / timedelta(milliseconds=1):g} ms: no verdict from rank "
                f"{self._global_ranks[0]}; look at what that rank is doing",
                rank=rank,
                peer=self._global_ranks[0],
                collective="monitored_barrier",
                waited=timeout.total_seconds(),
            )
        verdict = self._store.get(f"{number}/verdict").decode()
        if verdict.startswith(_FAILED):
            raise RemoteError(
                f"[rank {rank}] Rank {rank} successfully reached monitoredBarrier, but received "
                f"errors while waiting for send/recv from rank {self._global_ranks[0]}: "
                f"{verdict.removeprefix(_FAILED)}",
                rank=rank,
                peer=self._global_ranks[0],
                collective="monitored_barrier",
            )

    def _arrived(self, key: str, deadline: float) -> bool:
        left = max(deadline - time.monotonic(), 0.001)
        try:
            self._store.wait([key], timedelta(seconds=left))
        except RuntimeError as error:  # each kind of store has its own class for "not in time"
            if self._store.check([key]):
                return True
            if isinstance(error, dist.DistStoreError) or time.monotonic() >= deadline:
                return False
            raise StoreError(
                f"monitored_barrier: the store does not answer ({error}); is the process that "
                "hosts it (usually rank 0) still running?"
            ) from error
        return True


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Like ``torch.distributed.monitored_barrier``, which refuses every backend but Gloo.

    Blocks until all ranks of ``group`` (default: all) have called it, or ``timeout`` (a number
    is seconds; default: the group's) passes. Then rank 0 raises ``CollectiveTimeoutError``
    naming the first missing rank, or every one with ``wait_all_ranks``, and the other ranks
    raise ``RemoteError``.
    """
    target: Any = dist.group.WORLD if group is None else group
    if target == dist.GroupMember.NON_GROUP_MEMBER:
        return
    barrier = getattr(target, "monitored_barrier", None)
    if barrier is None:
        raise UsageError("monitored_barrier needs a process group; call init_process_group first")
    if timeout is None:
        barrier(wait_all_ranks=wait_all_ranks)
    else:
        barrier(timeout, wait_all_ranks)
