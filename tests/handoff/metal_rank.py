"""One rank of the stand-in runs: bursts and backward passes over many seeds.

Run as a script by ``test_metal_standin.py``, with the ends of socket pairs to its peer. What
it checks, it checks on the stand-in's GPU (``check`` kernels), so that nothing in a run
synchronises the host with the stream before the seed is over. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from handoff.pair import Pair
from handoff.standin import Standin, StandinMemory, build
from mccl.engine import native_library
from mccl.handoff.metal import MetalHandoff, MetalLease
from mccl.handoff.metal_bridge import MetalBridge, SharedEvent
from mccl.handoff.staging import Staged, StagingPool

WORLD = 2
RANKS_SUM = 3  # values are (rank + 1) * k, so an all-reduce gives 3 k


# ---- mutants: each breaks one rule ------------------------------------------------------


class DropProduced(MetalBridge):
    """O1: the ticket rises when the call is made, not when the GPU gets there."""

    def encode_signal(self, event: SharedEvent, value: int) -> None:
        super().encode_signal(self.create_event(), 1)
        self.raise_event(event, value)


class DropConsumed(MetalBridge):
    """O2: the stream does not wait for the result."""

    def encode_wait(self, event: SharedEvent, value: int) -> None:
        pass


class SecondThread(MetalBridge):
    """O3: another thread encodes and commits."""

    def encode_signal(self, event: SharedEvent, value: int) -> None:
        def signal() -> None:
            super(SecondThread, self).encode_signal(event, value)

        thread = threading.Thread(target=signal)
        thread.start()
        thread.join()


class ReleaseEarly(MetalHandoff):
    """B1: the lease lets its tensors go as soon as the operation is issued."""

    def lease(self, *args: Any, **kwargs: Any) -> MetalLease:
        lease = super().lease(*args, **kwargs)
        issued = lease.issued

        def issue_and_forget(op: Any) -> None:
            issued(op)
            lease._loan.parts = ()

        lease.issued = issue_and_forget  # type: ignore[method-assign]
        return lease


class OneTemporary(StagingPool[Any]):
    """The staging buffer of one collective is the next one's too."""

    def take(self, nbytes: int) -> Staged[Any]:
        staged = super().take(nbytes)
        super().give_back(staged)
        return staged

    def give_back(self, staged: Staged[Any]) -> None:
        pass


MUTANTS = ("drop_produced", "drop_consumed", "second_thread", "release_early", "one_temporary")


def make_handoff(standin: Standin, options: argparse.Namespace) -> MetalHandoff:
    """The shipped handoff over the stand-in, or one with a rule broken."""
    bridges = {
        "drop_produced": DropProduced,
        "drop_consumed": DropConsumed,
        "second_thread": SecondThread,
    }
    bridge = bridges.get(options.mutant, MetalBridge)(native_library(), None)
    kind = ReleaseEarly if options.mutant == "release_early" else MetalHandoff
    handoff = kind(
        bridge,
        StandinMemory(standin, bridge),
        unified=not options.staged,
        event_sync=not options.no_events,
    )
    if options.mutant == "one_temporary":
        handoff.staging = OneTemporary(handoff._make_staging)
    return handoff


# ---- what a rank does --------------------------------------------------------------------


@dataclass
class Issued:
    """A collective in flight and what its result must be."""

    lease: MetalLease
    tensor: torch.Tensor | None
    base: float
    step: float


class Rank:
    """Issues collectives the way training does, and has the GPU check the results."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.rank: int = options.rank
        self.options = options
        self.standin = Standin(build())
        self.handoff = make_handoff(self.standin, options)
        memory = self.handoff.memory
        assert isinstance(memory, StandinMemory)
        self.memory = memory
        self.pair = Pair(options.rank, options.fds)

    def values(self, k: int) -> tuple[float, float]:
        """Base and step of this rank's input; both ranks' add to 3 times that of rank 0."""
        return float((self.rank + 1) * k), float((self.rank + 1) * (k % 7))

    def view(self, draw: random.Random, count: int) -> torch.Tensor:
        """A tensor as training has them: whole, offset into a shared storage, or strided."""
        kind = draw.randrange(8)
        if kind == 0:
            return self.memory.empty(count, private=True)
        if kind == 1:
            return self.memory.empty(3 * count)[count : 2 * count]
        if kind == 2:
            return self.memory.empty(count, 2)[:, 1]
        return self.memory.empty(count)

    def fill(self, tensor: torch.Tensor, base: float, step: float) -> None:
        """Kernels that write the input, the last of them late."""
        if tensor.is_contiguous():
            self.memory.ramp(tensor, base - 1, step)
            self.memory.affine(tensor, 1, 1)
            return
        packed = self.memory.empty(*tensor.shape)
        self.memory.ramp(packed, base, step)
        self.memory.unpack(tensor, packed)

    def check(self, tensor: torch.Tensor, base: float, step: float) -> None:
        """A kernel that reads the result."""
        packed = tensor if tensor.is_contiguous() else self.memory.pack(tensor)
        self.memory.check(packed, base, step)

    def issue(self, tensor: torch.Tensor, k: int) -> MetalLease:
        """Write the tensor and all-reduce it, without waiting for either."""
        self.fill(tensor, *self.values(k))
        lease = self.handoff.lease([tensor], [tensor])
        lease.issued(self.pair.all_reduce(lease, tensor.numel()))
        return lease

    def burst(self, draw: random.Random) -> None:
        """Many operations in flight; results are read, kept or thrown away, in any order."""
        flight: deque[Issued] = deque()
        window = draw.choice((1, 4, 32))
        for k in range(1, self.options.operations + 1):
            tensor: torch.Tensor | None = self.view(draw, draw.choice((3, 64, 257, 1024)))
            assert tensor is not None
            lease = self.issue(tensor, k)
            # A temporary: only the lease keeps it. Both ranks draw the same.
            if draw.randrange(4) == 0:
                tensor = None
            flight.append(Issued(lease, tensor, RANKS_SUM * k, RANKS_SUM * (k % 7)))
            while len(flight) > window:
                self.finish(flight, draw)
        while flight:
            self.finish(flight, draw)

    def finish(self, flight: deque[Issued], draw: random.Random) -> None:
        """Wait for one of the oldest and read it; some are never waited for."""
        index = draw.randrange(min(3, len(flight)))
        done = flight[index]
        del flight[index]
        if done.tensor is None:
            if draw.randrange(2):
                done.lease.wait()
            return
        done.lease.wait()
        self.check(done.tensor, done.base, done.step)

    def backward(self, draw: random.Random) -> None:
        """Steps of DDP's shape: buckets all-reduced from inside backward, read by an optimizer."""
        buckets = [self.memory.empty(draw.choice((64, 1024))) for _ in range(8)]
        for step in range(1, self.options.operations // len(buckets) + 1):
            futures: list[Any] = []
            ones = torch.ones((), requires_grad=True)
            nodes = [
                _Produce.apply(ones, self, bucket, i + step, futures)
                for i, bucket in enumerate(buckets)
            ]
            torch.stack(nodes).sum().backward()
            assert len(futures) == len(buckets)
            assert all(future.done() for future in futures), "backward ended before its futures"
            for i, bucket in enumerate(buckets):
                # The hook halved the sum on the GPU, behind the wait.
                k = i + step
                self.check(bucket, 0.5 * RANKS_SUM * k, 0.5 * RANKS_SUM * (k % 7))
                self.memory.affine(bucket, 0, 0)  # zero_grad


class _Produce(torch.autograd.Function):
    """A node whose backward writes one bucket on the GPU and all-reduces it, as DDP's hook does."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, x: torch.Tensor, rank: Rank, bucket: torch.Tensor, k: int, futures: list[Any]
    ) -> torch.Tensor:
        ctx.args = rank, bucket, k, futures
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
        rank, bucket, k, futures = ctx.args
        lease = rank.issue(bucket, k)
        future = lease.future([bucket])
        assert not future.done(), "completed at issue time: hooks would run before the result"

        def decompress(done: Any) -> torch.Tensor:
            rank.memory.affine(bucket, 0.5, 0)
            result: torch.Tensor = done.value()[0]
            return result

        futures.append(future.then(decompress))
        return grad, None, None, None, None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--fds", type=lambda text: [int(fd) for fd in text.split(",")])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--operations", type=int, default=640)
    parser.add_argument("--delay-us", type=int, default=40)
    parser.add_argument("--scenario", choices=("burst", "backward"), default="burst")
    parser.add_argument("--mutant", choices=("none", *MUTANTS), default="none")
    parser.add_argument("--staged", action="store_true")
    parser.add_argument("--no-events", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rank = Rank(options)
    scenario: Callable[[random.Random], None] = getattr(rank, options.scenario)
    total = {"seeds": 0, "mismatches": 0, "checked": 0, "operations": 0, "waits_that_blocked": 0}
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        rank.standin.c_reset(seed * WORLD + rank.rank, options.delay_us)
        rank.standin.c_own_stream(1)
        scenario(random.Random(seed))
        rank.standin.c_synchronize()
        counts = rank.standin.counts()
        total["seeds"] += 1
        total["operations"] += options.operations
        for name in ("mismatches", "checked", "waits_that_blocked"):
            total[name] += getattr(counts, name)
        if counts.mismatches:
            break
    if options.mutant == "none":
        total |= rank_end(rank)
    print(json.dumps(total), flush=True)


def rank_end(rank: Rank) -> dict[str, int]:
    """Close everything and count what is left: a leak, or a lease that was not given back."""
    rank.pair.settle()
    queue = rank.handoff.completion
    while queue.watched():
        pass
    left = {"lanes_in_use": rank.handoff.lanes.in_use(), "reused": rank.memory.reused}
    rank.handoff.close()
    rank.pair.close()
    rank.memory.release()
    counts = rank.standin.counts()
    return left | {"live_events": counts.live_events, "live_buffers": counts.live_buffers}


if __name__ == "__main__":
    main()
