"""Prepared calls: what a collective of one shape needs, made once and kept.

A training step repeats its collectives, so planning (Python, microseconds to milliseconds)
is paid once per (collective, dtype, sizes, reduce operation, root) and then costs a lookup.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mccl.config import Config, ConfigError
from mccl.engine import Call, DType, NativePlan
from mccl.plans import GROUPED, Collective, Request, build, choose
from mccl.plans.choose import Table
from mccl.plans.tuning import TUNED, Tuning, parse
from mccl.process_group.dtypes import LOW_PRECISION, WIRE, Reduction
from mccl.process_group.grouping import Groups

logger = logging.getLogger("mccl.process_group")

CAPACITY = 4096
"""Calls kept a group; the oldest goes first. Operations in flight keep what they need."""

ITEMSIZE: dict[DType, int] = {
    DType.U8: 1,
    DType.I8: 1,
    DType.I16: 2,
    DType.I32: 4,
    DType.I64: 8,
    DType.F16: 2,
    DType.BF16: 2,
    DType.F32: 4,
    DType.F64: 8,
    DType.BOOL: 1,
    DType.C64: 8,
    DType.C128: 16,
}


class Prepared:
    """One collective ready to submit, and the peers it talks to."""

    __slots__ = ("buffers", "call", "connected", "recv_peers", "send_peers")

    def __init__(
        self, call: Call, buffers: int, send_peers: frozenset[int], recv_peers: frozenset[int]
    ) -> None:
        self.call = call
        self.buffers = buffers
        self.send_peers = send_peers
        self.recv_peers = recv_peers
        self.connected = False
        """Set once the links exist, so that later submissions skip asking for them."""


class Calls:
    """The prepared calls of one process group; ``groups`` gives its ranks by switch, if known."""

    def __init__(
        self,
        rank: int,
        size: int,
        config: Config,
        groups: Callable[[], Groups | None],
        tuning: Tuning | None = None,
    ) -> None:
        self._rank = rank
        self._size = size
        self._config = config
        self._groups = groups
        self._tuning = tuning
        self._wire = None if config.wire_dtype is None else WIRE[config.wire_dtype]
        self._untuned_said = False
        self._known: dict[Any, Prepared] = {}

    def get(
        self,
        collective: Collective,
        dtype: DType,
        request: Request,
        op: Reduction | None = None,
        *,
        rooted: bool = False,
    ) -> Prepared:
        """The prepared call, planned on first use. ``rooted``: ``request.root`` means something."""
        key = (collective, dtype, request, op)
        prepared = self._known.get(key)
        if prepared is None:
            prepared = self._prepare(collective, dtype, request, op, rooted)
            if len(self._known) >= CAPACITY:
                del self._known[next(iter(self._known))]
            self._known[key] = prepared
        return prepared

    def _prepare(
        self,
        collective: Collective,
        dtype: DType,
        request: Request,
        op: Reduction | None,
        rooted: bool,
    ) -> Prepared:
        config = self._config
        wire = dtype
        if self._wire is not None and collective is Collective.ALL_REDUCE and dtype is DType.F32:
            wire = self._wire
        count = self._total(collective, request)
        groups = self._applicable(collective, count * ITEMSIZE[dtype])
        algorithm = choose(
            collective,
            count,
            ITEMSIZE[dtype],
            self._size,
            small_threshold=config.small_msg_threshold,
            algo=config.algo,
            low_precision=op is not None and dtype in LOW_PRECISION,
            compressed=wire is not dtype,
            grouped=groups is not None,
            table=self._table(groups),
        )
        if algorithm in GROUPED:
            request = replace(request, groups=groups)
        plan = build(collective, algorithm, self._size, self._rank, request)
        call = Call(
            NativePlan(plan),
            collective,
            dtype,
            None if op is None else op.redop,
            wire,
            request.root if rooted else -1,
            count,
            1.0 if op is None else op.premul,
        )
        return Prepared(call, len(plan.external), plan.send_peers, plan.recv_peers)

    def _applicable(self, collective: Collective, nbytes: int) -> Groups | None:
        """The groups that a two-level algorithm would use, or by which a tuning file may choose;
        None where neither is the case."""
        config = self._config
        if config.algo == "auto" and self._tuning is not None and self._tuning.knows(self._size):
            return self._groups() if collective in TUNED else None
        if collective is not Collective.ALL_REDUCE or config.algo not in ("auto", *GROUPED):
            return None
        if config.algo == "auto" and nbytes <= config.small_msg_threshold:
            return None
        return self._groups()

    def _table(self, groups: Groups | None) -> Table | None:
        """The tuned table for these ranks, None for the default one."""
        if self._tuning is None:
            return None
        table = self._tuning.table(self._size, groups, self._config.small_msg_threshold)
        if table is None and not self._untuned_said:
            self._untuned_said = True
            logger.info(
                "MCCL_TUNING has no table for %d ranks in %s; the default choice is in force.",
                self._size,
                f"groups {groups}" if groups else "one group",
            )
        return table

    def _total(self, collective: Collective, request: Request) -> int:
        """Elements of the whole payload, as every rank of the call knows it."""
        sizes = request.sizes
        if collective in (Collective.ALL_TO_ALL, Collective.BARRIER):
            # Each rank knows only its own row of an all-to-all; links check their own totals.
            return 0
        if not isinstance(sizes, int):
            return sum(sizes)
        whole = (Collective.ALL_REDUCE, Collective.BROADCAST, Collective.REDUCE)
        return sizes if collective in whole else sizes * self._size


def spelled(sizes: tuple[int, ...]) -> int | tuple[int, ...]:
    """One number where all sizes are equal, so that both spellings share a prepared call."""
    return sizes[0] if len(set(sizes)) == 1 else sizes


def tuning_of(config: Config) -> Tuning | None:
    """The tuning file's tables. Raises ConfigError where it is none."""
    if config.tuning is None:
        return None
    try:
        return parse(config.tuning.text)
    except ValueError as error:
        raise ConfigError(
            f"MCCL_TUNING={str(config.tuning.path)!r} cannot be used: {error}. Expected a file "
            "written by mccl plan --tune of this version: make it again, or unset MCCL_TUNING."
        ) from error
