"""The c10d process group: its parts put together, its beginning and its end."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BarrierOptions, PrefixStore, Store

from mccl.communicator import Communicator
from mccl.config import Config
from mccl.engine import DType, Stats
from mccl.errors import UsageError
from mccl.observe.dump import watch
from mccl.plans import Collective, Request
from mccl.process_group.calls import Calls, tuning_of
from mccl.process_group.coalescing import Coalescing
from mccl.process_group.grouping import Grouping
from mccl.process_group.identity import GroupOptions, Identity, ranks_of
from mccl.process_group.launch import Launcher
from mccl.process_group.monitored import MonitoredBarrier
from mccl.process_group.options import resolve
from mccl.process_group.p2p import OwnMail, PointToPoint
from mccl.process_group.reducing import Reducing

# torch's stubs type overloads and properties as plain methods, which no subclass can match.
_C10dGroup: Any = dist.ProcessGroup


class ProcessGroupMCCL(Reducing, PointToPoint, Coalescing, Identity, _C10dGroup):  # type: ignore[misc]
    """A process group that sends over TCP with MCCL's engine.

    Made by ``torch.distributed`` for ``backend="mccl"``. Errors are ``mccl.errors``: a wrong
    argument raises ``UsageError`` on the rank that passed it and leaves the group usable;
    everything else breaks the group, and every later call raises that first error again.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        group_name: str,
        global_ranks: Sequence[int],
        timeout: timedelta,
        config: Config,
    ) -> None:
        # The constructor with a store makes a C++ object that Python cannot subclass.
        super().__init__(rank, size)
        self._store = store
        self._rank = rank
        self._size = size
        self._config = config
        self._global_ranks = ranks_of(global_ranks, size)
        self._group_name = group_name
        self._group_desc = "undefined"
        self._bound_device: torch.device | None = None
        self._options = GroupOptions(timeout, list(self._global_ranks), group_name)
        # Before anything is opened, as they may refuse their settings.
        grouping = Grouping(config.groups, self._global_ranks)
        tuning = tuning_of(config)
        self._communicator = Communicator(
            store,
            rank,
            size,
            group_name=group_name,
            global_ranks=self._global_ranks,
            timeout=timeout,
            config=config,
        )
        groups = partial(grouping.get, self._communicator.subnets)
        self._calls = Calls(rank, size, config, groups, tuning)
        self._subject = watch(self._communicator, self)
        self._launcher = Launcher(self._communicator, config, timeout, self._subject)
        self._repeated = {}
        self._own_mail = OwnMail()
        self._monitored = MonitoredBarrier(store, rank, size, self._global_ranks)
        self._splits = 0

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> dist.Work:
        """Complete on no rank before every rank has called it."""
        options = resolve(BarrierOptions, opts, timeout)
        prepared = self._calls.get(Collective.BARRIER, DType.U8, Request())
        return self._launcher.barrier(
            prepared, timeout=options.timeout, asynchronous=options.asyncOp
        )

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """See ``mccl.monitored_barrier``."""
        if timeout is None:
            timeout = self._options._timeout
        elif not isinstance(timeout, timedelta):
            timeout = timedelta(seconds=timeout)
        self._monitored.run(timeout, wait_all_ranks)

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> ProcessGroupMCCL | None:
        """A group of some of this group's ranks; None on ranks that are not among them.

        Every rank of this group must call it. ``new_ranks`` are ranks of this group, in the
        order they have in the new one.
        """
        ranks = [int(rank) for rank in new_ranks]
        if not ranks or len(set(ranks)) != len(ranks):
            raise UsageError(f"split_group: ranks must be distinct and not empty, got {ranks}")
        for rank in ranks:
            if not 0 <= rank < self._size:
                raise UsageError(
                    f"split_group: rank {rank} is not in the group; expected 0 to {self._size - 1}"
                )
        name = group_name or f"{self._group_name}:split:{self._splits}"
        self._splits += 1
        if self._rank not in ranks:
            return None
        group = ProcessGroupMCCL(
            PrefixStore(f"{name}/", self._store),
            ranks.index(self._rank),
            len(ranks),
            group_name=name,
            global_ranks=[self._global_ranks[rank] for rank in ranks],
            timeout=self._options._timeout if timeout is None else timeout,
            config=self._config,
        )
        if group_desc is not None:
            group.setGroupDesc(group_desc)
        return group

    def get_group_store(self) -> Store:
        """The store under the group's own prefix."""
        return self._store

    def stats(self) -> Stats:
        """Counters of this group's engine since it was made or last reset (bytes and µs)."""
        return self._communicator.native.stats()

    def reset_stats(self) -> None:
        """Start the counters again from zero."""
        self._communicator.native.reset_stats()

    def abort(self) -> None:
        """Break the group here and on every other rank; all waiting calls raise."""
        self._communicator.abort(f"abort() was called on rank {self._global_ranks[self._rank]}")

    def shutdown(self) -> None:
        """Leave in good order. Never waits for anyone; later calls raise."""
        self._launcher.close()
        self._communicator.close()

    def __repr__(self) -> str:
        return f"ProcessGroupMCCL(name={self._group_name!r}, rank={self._rank}, size={self._size})"


def create(backend_options: Any, options: Any) -> ProcessGroupMCCL:
    """Make a group for ``torch.distributed`` (the extended creator of ``register_backend``)."""
    if options is not None and not isinstance(options, GroupOptions):
        raise UsageError(
            f"pg_options of type {type(options).__name__} is not understood by mccl; pass None "
            "(settings are MCCL_* environment variables) or a mccl GroupOptions"
        )
    return ProcessGroupMCCL(
        backend_options.store,
        backend_options.group_rank,
        backend_options.group_size,
        group_name=str(backend_options.group_id),
        global_ranks=backend_options.global_ranks_in_group,
        timeout=backend_options.timeout,
        config=Config.from_env(),
    )
