"""``_start_coalescing`` / ``_end_coalescing``: several calls, one work.

Between the two, every call is issued at once and none blocks, so a group of sends and
receives cannot deadlock whatever its order; the end returns one work for all of them.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from mccl.errors import UsageError
from mccl.process_group.members import Members
from mccl.process_group.work import GroupedWork


class Coalescing(Members):
    """The coalescing part of the c10d interface."""

    def _start_coalescing(self, device: torch.device | None = None) -> None:
        if self._launcher.coalescing is not None:
            raise UsageError(
                "_start_coalescing was called twice without _end_coalescing; blocks cannot nest"
            )
        self._launcher.coalescing = []

    def _end_coalescing(self, device: torch.device | None = None) -> dist.Work:
        works, self._launcher.coalescing = self._launcher.coalescing, None
        if works is None:
            raise UsageError("_end_coalescing was called without _start_coalescing")
        return GroupedWork(works, [work.result() for work in works])
