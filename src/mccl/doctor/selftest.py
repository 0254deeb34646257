"""Two ranks on this machine: exact answers, latency and bandwidth over the loopback interface.

Run as ``python -m mccl.doctor.selftest STORE RANK`` it is one of the ranks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from mccl.doctor.finding import Finding, Status

SECTION = "self-test"
LIMIT = 60.0
RANKS = 2


def examine() -> Iterator[Finding]:
    """Start two ranks, wait, and judge what they say."""
    with tempfile.TemporaryDirectory(prefix="mccl-doctor-") as folder:
        # Addresses and ports of a surrounding job must not lead the ranks elsewhere.
        environ = {**os.environ, "MCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        for name in ("MASTER_ADDR", "MASTER_PORT", "MCCL_LISTEN_ADDR", "MCCL_PORT_BASE"):
            environ.pop(name, None)
        command = [sys.executable, "-m", "mccl.doctor.selftest", str(Path(folder) / "store")]
        ranks = [
            subprocess.Popen(
                [*command, str(rank)],
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        yield from _judge(ranks)


def _judge(ranks: list[subprocess.Popen[str]]) -> Iterator[Finding]:
    deadline = time.monotonic() + LIMIT
    said: list[tuple[str, str]] = []
    try:
        for rank in ranks:
            said.append(rank.communicate(timeout=max(0.1, deadline - time.monotonic())))
    except subprocess.TimeoutExpired:
        yield Finding(
            SECTION,
            "two ranks",
            Status.FAIL,
            f"no answer within {LIMIT:.0f} s",
            "Loopback traffic is blocked or very slow: look at the firewall, then run again with "
            "MCCL_DEBUG=1",
        )
        return
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(signal.SIGKILL)
            rank.communicate()
    failed = [index for index, rank in enumerate(ranks) if rank.returncode]
    if failed:
        last = (said[failed[0]][1].strip() or "no message").splitlines()[-1]
        advice = "Run again with MCCL_DEBUG=1 for what led to it"
        yield Finding(SECTION, f"rank {failed[0]}", Status.FAIL, last, advice)
        return
    result = json.loads(said[0][0].splitlines()[-1])
    yield Finding(SECTION, "answers", Status.OK, f"{result['checks']} collectives exact on 2 ranks")
    yield Finding(SECTION, "latency", Status.OK, f"{result['latency_us']:.0f} us, all-reduce 1 KiB")
    yield Finding(
        SECTION, "bandwidth", Status.OK, f"{result['busbw_gb']:.2f} GB/s, all-reduce 16 MiB"
    )


# ---- one rank --------------------------------------------------------------------------------


def rank_main(store: str, rank: int) -> None:
    """Check a few collectives exactly and time two sizes; rank 0 prints the result as JSON."""
    import torch
    import torch.distributed as dist

    import mccl  # noqa: F401 - registers the backend where the package is not installed

    dist.init_process_group(
        "mccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=LIMIT / 2),
    )
    checks = 0
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.uint8):
        for count in (1, 1000, 300_001):
            mine = (torch.arange(count) % 50 + rank).to(dtype)
            dist.all_reduce(mine)
            expect((2 * (torch.arange(count) % 50) + 1).to(dtype), mine, f"all_reduce {dtype}")
            copied = torch.full((count,), rank + 3).to(dtype)
            dist.broadcast(copied, src=1)
            expect(torch.full((count,), 4).to(dtype), copied, f"broadcast {dtype}")
            checks += 2
    latency = timed(torch.ones(256), repeats=200)
    big = torch.ones(4 << 20)
    # busbw as nccl-tests has it: S/t * 2(n-1)/n, which is S/t for two ranks.
    bandwidth = big.numel() * 4 / timed(big, repeats=10)
    if rank == 0:
        result = {"checks": checks, "latency_us": latency * 1e6, "busbw_gb": bandwidth / 1e9}
        print(json.dumps(result))
    dist.destroy_process_group()


def timed(tensor: object, repeats: int) -> float:
    """Median seconds of one all-reduce."""
    import torch.distributed as dist

    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        times.append(time.perf_counter() - begin)
    return sorted(times)[repeats // 2]


def expect(wanted: object, found: object, what: str) -> None:
    """Raise when the two tensors differ in any element."""
    import torch

    if not (isinstance(wanted, torch.Tensor) and isinstance(found, torch.Tensor)):
        raise TypeError(f"{what}: expected tensors")
    if not torch.equal(wanted, found):
        wrong = int((wanted != found).nonzero()[0])
        raise ArithmeticError(
            f"{what} of {found.numel()} elements: element {wrong} is {found[wrong].item()}, "
            f"expected {wanted[wrong].item()}"
        )


if __name__ == "__main__":
    rank_main(sys.argv[1], int(sys.argv[2]))
