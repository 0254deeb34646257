"""A stopwatch around DDP's own all-reduce: what was on the network, and what had to be waited for.

Theory of operation. DDP calls a communication hook for each bucket as soon as backward has filled
it, and at the end of backward waits for all of them. The hook here does what DDP does by default
(divide, all-reduce) and notes when each bucket left and came back. The last bucket leaves when
nothing is left to compute, so what backward still takes after that is *exposed* communication;
the union of all buckets' times is the *flight*. Valid for CPU tensors, whose kernels are done
when their call returns.
"""

# No `from __future__ import annotations`: DDP compares the hook's annotations with the types.

import threading
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from mccl.demo.settings import Traffic


class Watch:
    """Collects what the buckets did. `hook` runs on the backward thread, replies on any."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._lock = threading.Lock()
        self._flights: list[tuple[float, float]] = []
        self._last_left = 0.0
        self.buckets = 0
        self._count = 0
        self._bytes = 0
        self._exposed = 0.0

    def hook(
        self,
        _: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        """DDP's default hook, timed."""
        gradients = bucket.buffer().div_(self._ranks)
        left = time.perf_counter()
        self._last_left = left
        self._count += 1
        self.buckets = max(self.buckets, bucket.index() + 1)
        self._bytes += gradients.numel() * gradients.element_size()
        work = dist.all_reduce(gradients, async_op=True)

        def back(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            with self._lock:
                self._flights.append((left, time.perf_counter()))
            return future.value()[0]

        done: torch.futures.Future[Tensor] = work.get_future().then(back)
        return done

    def after_backward(self) -> float:
        """Call when backward has returned; gives this step's exposed seconds."""
        exposed = time.perf_counter() - self._last_left
        self._exposed += exposed
        return exposed

    def restart(self) -> None:
        """Forget everything so far (warm-up)."""
        with self._lock:
            self._flights.clear()
        self._count = self._bytes = 0
        self._exposed = 0.0

    def traffic(self, *, sent_bytes: int | None, alone: float) -> Traffic:
        """The sum since the last restart."""
        with self._lock:
            flight = union(self._flights)
        return Traffic(
            collectives=self._count,
            payload_bytes=self._bytes,
            sent_bytes=sent_bytes,
            flight=flight,
            exposed=min(self._exposed, flight),
            alone=alone,
        )


def alone(parameters: int, device: torch.device, repeats: int = 10) -> float:
    """Median seconds of one all-reduce of that many float32 with nothing else going on."""
    gradients = torch.zeros(parameters, device=device)
    times = []
    for _ in range(repeats):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(gradients)
        times.append(time.perf_counter() - begin)
    return sorted(times)[repeats // 2]


def union(intervals: Sequence[tuple[float, float]]) -> float:
    """Length covered by the intervals, overlaps counted once."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
