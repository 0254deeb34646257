"""Ranks start, meet, report, and none is left when one fails or hangs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mccl.bench.launch import LocalLauncher, RankContext, RankFailedError

pytestmark = pytest.mark.timeout(60)


def meet(context: RankContext, options: dict[str, Any]) -> list[Any]:
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=context.group("gloo"))
    return [context.gather(context.rank * 10), context.share(context.rank + 7), tensor.tolist()]


def fail(context: RankContext, options: dict[str, Any]) -> None:
    Path(options["folder"], str(context.rank)).write_text(str(os.getpid()))
    context.gather("all have written")
    if context.rank == 1:
        how = options["how"]
        if how == "raise":
            raise ValueError("rank one says no")
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)  # a rank that hangs: the launcher has to end it


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


def test_results_come_in_rank_order() -> None:
    results = LocalLauncher().run(meet, {}, 3, 30)
    assert results == [[[0, 10, 20], 7, [3.0, 3.0, 3.0]]] * 3


@pytest.mark.parametrize(
    ("how", "message"),
    [("raise", "rank one says no"), ("die", "exit code -9"), ("hang", "no result within 2 s")],
)
def test_a_failed_run_names_the_rank_and_leaves_nothing(
    tmp_path: Path, how: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"folder": str(tmp_path), "how": how}
    started = time.monotonic()
    with pytest.raises(RankFailedError, match=message) as caught:
        LocalLauncher().run(fail, options, 2, 2 if how == "hang" else 30)
    assert "rank 1" in str(caught.value)
    assert time.monotonic() - started < 25, "the other rank was waited for to the time limit"
    if Path("/proc").exists():
        assert not [p.name for p in tmp_path.iterdir() if alive(int(p.read_text()))]
