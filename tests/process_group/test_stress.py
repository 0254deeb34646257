"""Random collectives of every kind, issued without waiting, each checked exactly."""

from __future__ import annotations

import os
import random
import resource
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.process_group.ranks import run
from tests.process_group.values import combined, same, values

COUNT = int(os.environ.get("STRESS_COUNT", "1000"))
"""A longer run, for example a nightly one: ``STRESS_COUNT=10000 pytest tests/process_group``."""

WINDOW = 64
"""Operations in flight before the oldest is waited for and checked."""

Check = Callable[[], None]
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8)  # fmt: skip
OPS = (dist.ReduceOp.SUM, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT,
       dist.ReduceOp.AVG)  # fmt: skip


class Stress:
    """The same choices on every rank, from the same seed; ``seed`` makes each call's data."""

    def __init__(self, rank: int, n: int) -> None:
        self.rank, self.n = rank, n
        self.random = random.Random(20)
        self.seed = 0
        self.kinds = [self.all_reduce, self.broadcast, self.all_gather, self.reduce_scatter,
                      self.all_to_all, self.reduce, self.gather, self.scatter, self.message,
                      self.barrier]  # fmt: skip

    def issue(self) -> tuple[Any, Check]:
        self.seed += 1
        dtype = self.random.choice(DTYPES)
        small = self.random.random() < 0.9
        count = self.random.randrange(0, 3000) if small else self.random.randrange(3000, 120_000)
        kind = self.random.choice(self.kinds)
        return kind(dtype, count, self.random.randrange(self.n), self.random.choice(OPS))

    def make(self, rank: int, count: int, dtype: torch.dtype, extra: int = 0) -> torch.Tensor:
        return values(rank, (count,), dtype, seed=self.seed * 3 + extra)

    def all_reduce(self, dtype: Any, count: int, root: int, op: Any) -> tuple[Any, Check]:
        tensor = self.make(self.rank, count, dtype)
        seed, what = self.seed, ("all_reduce", dtype, count, op)
        work = dist.all_reduce(tensor, op, async_op=True)
        return work, lambda: same(tensor, self.reduced(seed, count, dtype, op), what)

    def reduced(self, seed: int, count: int, dtype: Any, op: Any, extra: int = 0) -> torch.Tensor:
        inputs = [values(r, (count,), dtype, seed=seed * 3 + extra) for r in range(self.n)]
        return combined(inputs, op)

    def reduce(self, dtype: Any, count: int, root: int, op: Any) -> tuple[Any, Check]:
        tensor = self.make(self.rank, count, dtype)
        seed, what = self.seed, ("reduce", dtype, count, root, op)
        work = dist.reduce(tensor, root, op, async_op=True)

        def check() -> None:
            if self.rank == root:
                same(tensor, self.reduced(seed, count, dtype, op), what)

        return work, check

    def broadcast(self, dtype: Any, count: int, root: int, op: Any) -> tuple[Any, Check]:
        tensor = self.make(self.rank, count, dtype)
        expected = self.make(root, count, dtype)
        work = dist.broadcast(tensor, root, async_op=True)
        return work, lambda: same(tensor, expected, ("broadcast", dtype, count, root))

    def all_gather(self, dtype: Any, count: int, root: int, op: Any) -> tuple[Any, Check]:
        expected = [self.make(r, count + r, dtype) for r in range(self.n)]
        outputs = [torch.zeros_like(t) for t in expected]
        work = dist.all_gather(outputs, self.make(self.rank, count + self.rank, dtype),
                               async_op=True)  # fmt: skip

        def check() -> None:
            for output, right in zip(outputs, expected, strict=True):
                same(output, right, ("all_gather", dtype, count))

        return work, check

    def reduce_scatter(self, dtype: Any, count: int, root: int, op: Any) -> tuple[Any, Check]:
        piece = count // self.n
        inputs = torch.cat([self.make(self.rank, piece, dtype, r) for r in range(self.n)])
        output = torch.zeros(piece, dtype=dtype)
        seed, what = self.seed, ("reduce_scatter", dtype, piece, op)
        work = dist.reduce_scatter_tensor(output, inputs, op, async_op=True)
        return work, lambda: same(
            output, self.reduced(seed, piece, dtype, op, extra=self.rank), what
        )

    def all_to_all(self, dtype: Any, count: int, root: int, op: Any) -> tuple[Any, Check]:
        piece = count // self.n
        inputs = [self.make(self.rank, piece + r, dtype, r) for r in range(self.n)]
        expected = [self.make(r, piece + self.rank, dtype, self.rank) for r in range(self.n)]
        outputs = [torch.zeros_like(t) for t in expected]
        work = dist.all_to_all(outputs, inputs, async_op=True)

        def check() -> None:
            for output, right in zip(outputs, expected, strict=True):
                same(output, right, ("all_to_all", dtype, piece))

        return work, check

    def gather(self, dtype: Any, count: int, root: int, op: Any) -> tuple[Any, Check]:
        expected = [self.make(r, count, dtype) for r in range(self.n)]
        outputs = [torch.zeros_like(t) for t in expected] if self.rank == root else None
        work = dist.gather(expected[self.rank].clone(), outputs, root, async_op=True)

        def check() -> None:
            for output, right in zip(outputs or (), expected, strict=False):
                same(output, right, ("gather", dtype, count, root))

        return work, check

    def scatter(self, dtype: Any, count: int, root: int, op: Any) -> tuple[Any, Check]:
        pieces = [self.make(root, count, dtype, r) for r in range(self.n)]
        output = torch.zeros(count, dtype=dtype)
        work = dist.scatter(output, pieces if self.rank == root else None, root, async_op=True)
        return work, lambda: same(output, pieces[self.rank], ("scatter", dtype, count, root))

    def message(self, dtype: Any, count: int, root: int, op: Any) -> tuple[Any, Check]:
        right, left = (self.rank + 1) % self.n, (self.rank - 1) % self.n
        output = torch.zeros(count, dtype=dtype)
        expected = self.make(left, count, dtype)
        tag = self.random.randrange(5)
        dist.isend(self.make(self.rank, count, dtype), right, tag=tag)
        work = dist.irecv(output, left, tag=tag)
        return work, lambda: same(output, expected, ("message", dtype, count))

    def barrier(self, dtype: Any, count: int, root: int, op: Any) -> tuple[Any, Check]:
        return dist.barrier(async_op=True), lambda: None


def descriptors() -> int:
    try:
        return len(list(Path("/proc/self/fd").iterdir()))
    except FileNotFoundError:
        return 0


def stress(rank: int, n: int, count: int) -> tuple[int, int, int]:
    """Growth of memory (KiB), threads and descriptors over the last three quarters."""
    maker = Stress(rank, n)
    pending: deque[tuple[Any, Check]] = deque()
    start = (0, 0, 0)
    for i in range(count):
        if i == count // 4:
            start = (usage(), threading.active_count(), descriptors())
        pending.append(maker.issue())
        if len(pending) > WINDOW:
            finish(*pending.popleft())
    while pending:
        finish(*pending.popleft())
    return tuple(  # type: ignore[return-value]
        after - before
        for after, before in zip(
            (usage(), threading.active_count(), descriptors()), start, strict=True
        )
    )


def finish(work: Any, check: Check) -> None:
    work.wait()
    check()


def usage() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_random_collectives() -> None:
    limit = 100 if COUNT <= 2000 else 3000
    for memory, threads, files in run(4, stress, COUNT, limit=limit):
        assert memory < 64 * 1024, f"memory grew by {memory} KiB"
        assert threads <= 0
        assert files <= 0
