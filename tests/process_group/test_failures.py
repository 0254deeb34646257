"""What survivors see when a rank dies, stops, leaves, comes late or calls something else."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mccl.errors import (
    CollectiveTimeoutError,
    MismatchError,
    PeerDiedError,
    PeerLeftError,
    PeerSilentError,
)
from tests.process_group.ranks import run

VICTIM = 1
STATM = Path("/proc/self/statm")
LARGE = 25 << 18  # fp32 elements of 25 MiB


def _caught(call: Any) -> dict[str, Any]:
    """Type, culprit and text of what ``call`` raises."""
    with pytest.raises(dist.DistBackendError) as caught:
        call()
    error = caught.value
    return {
        "type": type(error).__name__,
        "peer": getattr(error, "peer", None),
        "collective": getattr(error, "collective", None),
        "text": str(error),
    }


def _forever(tensor: torch.Tensor) -> None:
    while True:
        dist.all_reduce(tensor)


def one_rank_ends(rank: int, world_size: int, number: int) -> dict[str, Any] | None:
    tensor = torch.ones(LARGE)
    store = dist.distributed_c10d._get_default_store()
    if rank == VICTIM:
        for _ in range(3):
            dist.all_reduce(tensor)
        store.set("victim", str(os.getpid()))
        os.kill(os.getpid(), number)
    found = _caught(lambda: _forever(tensor))
    # The first error is kept: later calls raise it too.
    again = _caught(lambda: dist.all_reduce(tensor))
    assert again["type"] == found["type"]
    assert again["peer"] == found["peer"]
    if number == signal.SIGSTOP and store.add("done", 1) == world_size - 1:
        os.kill(int(store.get("victim")), signal.SIGKILL)  # it will not end by itself
    return found


def test_a_killed_rank_is_named_by_every_survivor() -> None:
    results = run(4, one_rank_ends, signal.SIGKILL, may_die=[VICTIM])
    for rank in (0, 2, 3):
        assert results[rank]["type"] == PeerDiedError.__name__
        assert results[rank]["peer"] == VICTIM
        assert f"rank {VICTIM}" in results[rank]["text"]


def test_a_stopped_rank_is_named_within_the_peer_timeout() -> None:
    results = run(
        3,
        one_rank_ends,
        signal.SIGSTOP,
        env={"MCCL_PEER_TIMEOUT": "2"},
        may_die=[VICTIM],
        limit=40,
    )
    for rank in (0, 2):
        assert results[rank]["type"] == PeerSilentError.__name__
        assert results[rank]["peer"] == VICTIM


def one_rank_leaves(rank: int, world_size: int) -> dict[str, Any] | None:
    tensor = torch.ones(LARGE)
    if rank == VICTIM:
        dist.all_reduce(tensor)
        dist.destroy_process_group()
        return None
    # Whoever needs the victim first tells the others, who may still be in the first all-reduce.
    return _caught(lambda: _forever(tensor))


def test_a_rank_that_leaves_too_early_is_named() -> None:
    results = run(3, one_rank_leaves)
    for rank in (0, 2):
        assert results[rank]["type"] == PeerLeftError.__name__
        assert results[rank]["peer"] == VICTIM


def another_call(rank: int, world_size: int, what: str) -> dict[str, Any]:
    tensor = torch.ones(1000)

    def call() -> None:
        dist.all_reduce(tensor)  # a faster rank's next call may break the group already here
        if rank != VICTIM:
            dist.all_reduce(tensor)
        elif what == "size":
            dist.all_reduce(torch.ones(999))
        elif what == "dtype":
            dist.all_reduce(torch.ones(1000, dtype=torch.float64))
        elif what == "operation":
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        else:
            dist.broadcast(tensor, 0)
        _forever(tensor)

    return _caught(call)


@pytest.mark.parametrize(
    ("what", "theirs"),
    [
        ("size", "999 elements"),
        ("dtype", "float64"),
        ("operation", "MAX"),
        ("collective", "broadcast"),
    ],
)
def test_a_mismatch_says_what_each_side_called(what: str, theirs: str) -> None:
    for result in run(3, another_call, what):
        assert result["type"] == MismatchError.__name__
        assert theirs in result["text"]
        assert "all_reduce(float32, SUM, 1000 elements)" in result["text"]


def unlinked_call(rank: int, world_size: int) -> dict[str, Any]:
    tensor = torch.ones(30)

    def call() -> None:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0)
        # From here on ranks 1 and 2 have no connection in common that both wait on.
        if rank == world_size - 1:
            dist.broadcast(tensor, 0)
        _forever(tensor)

    return _caught(call)


def test_a_mismatch_is_found_where_plans_share_no_connection() -> None:
    for result in run(3, unlinked_call):
        assert result["type"] == MismatchError.__name__
        assert "broadcast(float32, 30 elements, root 0)" in result["text"]


def nobody_comes(rank: int, world_size: int) -> dict[str, Any] | None:
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    store = dist.distributed_c10d._get_default_store()
    if rank == VICTIM:  # alive and silent until the other has seen its timeout
        store.wait(["seen"], timedelta(seconds=30))
        return None
    work = dist.distributed_c10d._get_default_group().allreduce(
        [tensor], _options(timedelta(seconds=1))
    )
    found = _caught(work.wait)
    store.set("seen", "yes")
    return found


def _options(timeout: timedelta) -> Any:
    options = dist.AllreduceOptions()
    options.timeout = timeout
    options.asyncOp = True
    return options


def test_a_timeout_names_who_never_came() -> None:
    result = run(2, nobody_comes)[0]
    assert result["type"] == CollectiveTimeoutError.__name__
    assert f"rank {VICTIM}" in result["text"]
    assert "1000 ms" in result["text"]


def _resident() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def late_rank(rank: int, world_size: int) -> int | None:
    tensor = torch.ones(64 << 20)  # 256 MiB
    dist.all_reduce(torch.ones(LARGE))  # links and their scratch exist
    store = dist.distributed_c10d._get_default_store()
    before = _resident()
    if rank == VICTIM:  # late until everyone else has started and stalled
        store.wait([f"stalled{r}" for r in range(world_size) if r != VICTIM])
        dist.all_reduce(tensor)
        return None
    work = dist.all_reduce(tensor, async_op=True)
    native = dist.distributed_c10d._get_default_group()._communicator.native
    sent = -1
    while sent != (sent := native.stats().bytes_sent):  # until nothing moves any more
        with pytest.raises(Exception, match="timeout"):
            work.wait(timedelta(milliseconds=300))
    grown = _resident() - before
    store.set(f"stalled{rank}", "yes")
    work.wait()
    assert bool((tensor == world_size).all())
    return grown


def test_a_late_rank_costs_its_neighbours_no_memory() -> None:
    if not STATM.exists():
        pytest.skip("resident memory is read from /proc, which only Linux has")
    for rank, grown in enumerate(run(3, late_rank, limit=100, timeout=90)):
        if rank != VICTIM:
            assert grown <= 8 << 20, f"rank {rank} grew by {grown >> 20} MiB"
