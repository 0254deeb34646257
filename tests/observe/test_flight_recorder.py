"""Dumps of real ranks, read by PyTorch's own analyzer and by ours."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder import fr_trace

import mccl
from mccl.errors import CollectiveTimeoutError, MismatchError, UsageError
from mccl.observe import dump
from mccl.observe.dumps import read as read_dumps
from mccl.observe.findings import examine
from mccl.observe.record import flight_record
from tests.process_group.ranks import run


def read(folder: Path, rank: int) -> dict[str, Any]:
    record = pickle.loads((folder / f"{dump.PREFIX}{rank}").read_bytes())
    assert record["rank"] == rank
    return record  # type: ignore[no-any-return]


def analyse(folder: Path, output: Path, caplog: pytest.LogCaptureFixture) -> Any:
    """What torch's analyzer makes of a folder: its log, and its flat database."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "Flight Recorder"):
        fr_trace.main([str(folder), "-o", str(output)])
    return caplog.text, pickle.loads(output.read_bytes())[1]


def said(folder: Path) -> list[tuple[str, tuple[int, ...], int | None]]:
    """What our own analyzer finds in the default group."""
    (group,) = read_dumps([folder])
    return [(f.kind, f.ranks, f.sequence) for f in examine(group)]


def different(rank: int, n: int, folder: str) -> None:
    for size in (10, 20):
        dist.all_reduce(torch.ones(size))
    # Which of the two depends on whether the two plans share a link.
    tensor = torch.ones(30)
    call = (lambda: dist.broadcast(tensor, 0)) if rank == 2 else (lambda: dist.all_reduce(tensor))
    with pytest.raises((MismatchError, CollectiveTimeoutError)):
        call()
    path = Path(folder) / f"{dump.PREFIX}{rank}"
    kept = path.rename(path.with_name(f".kept{rank}"))
    with pytest.raises((MismatchError, CollectiveTimeoutError)):
        dist.barrier()
    assert not path.exists(), "a group's failure is dumped once"
    kept.rename(path)


def test_ranks_that_call_different_things(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "dumps"
    run(3, different, str(folder), timeout=4, env={"MCCL_DUMP_DIR": str(folder)})
    assert sorted(p.name for p in folder.iterdir()) == [f"{dump.PREFIX}{r}" for r in range(3)]
    for rank in range(3):
        entries = read(folder, rank)["entries"]
        assert [e["collective_seq_id"] for e in entries] == [1, 2, 3]
        assert entries[1]["profiling_name"] == "mccl:all_reduce"
        assert entries[1]["input_sizes"] == [[20]]
        assert entries[1]["input_dtypes"] == ["Float"]
        assert [e["state"] for e in entries[:2]] == ["completed"] * 2
        assert entries[2]["state"] != "completed"
    text, database = analyse(folder, tmp_path / "db", caplog)
    assert "COLLECTIVE_TYPE_MISMATCH" in text
    assert [c.pass_check for c in database.collectives][:2] == [True, True]
    assert ("mismatch", (2,), 3) in said(folder)


def absent(rank: int, n: int, folder: str) -> None:
    store = dist.group.WORLD.get_group_store()
    dist.all_reduce(torch.ones(10))
    if rank == 2:
        store.wait(["raised/0", "raised/1"])
        assert mccl.dump_flight_recorder(folder) is not None
        return
    with pytest.raises(CollectiveTimeoutError):
        dist.all_gather([torch.ones(10) for _ in range(n)], torch.ones(10))
    store.set(f"raised/{rank}", "")


def test_a_rank_that_never_arrives(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "dumps"
    folder.mkdir()
    env = {"MCCL_DUMP_DIR": str(folder), "MCCL_RECORD_STACKS": "1"}
    run(3, absent, str(folder), timeout=2, env=env)
    for rank in (0, 1):
        record = read(folder, rank)
        last = record["entries"][-1]
        assert last["profiling_name"] == "mccl:all_gather"
        assert (last["input_sizes"], last["output_sizes"]) == ([[10]], [[30]])
        assert last["state"] in ("started", "scheduled")
        assert last["frames"][0]["name"] == "absent"
        assert Path(last["frames"][0]["filename"]).name == Path(__file__).name
        status = next(iter(record["pg_status"].values()))
        assert status["last_completed_collective"] == 1
        assert status["mccl"]["error"]["failure"] == "TIMEOUT"
    assert len(read(folder, 2)["entries"]) == 1
    text, _ = analyse(folder, tmp_path / "db", caplog)
    assert "Not all ranks joining collective" in text
    assert "missing ranks: {2}" in text
    assert said(folder)[0] == ("missing", (2,), 2)


def signalled(rank: int, n: int, folder: str) -> tuple[list[int], dict[str, Any]]:
    chained: list[int] = []
    seen: dict[str, Any] = {"entries": []}

    def before(number: int, frame: FrameType | None) -> None:
        chained.append(number)

    signal.signal(signal.SIGUSR1, before)
    bootstrap = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False)
    dist.init_process_group("mccl", store=bootstrap, rank=rank, world_size=n)
    dist.barrier()
    bootstrap.set(f"pid/{rank}", str(os.getpid()))
    if rank == 1:
        path = Path(folder) / f"{dump.PREFIX}0"
        # Until rank 0's record shows the call it is blocked in; this rank has not made it yet.
        while len(seen["entries"]) < 2:
            os.kill(int(bootstrap.get("pid/0")), signal.SIGUSR1)
            time.sleep(0.05)  # paces the signals, no more
            if path.exists():
                seen = pickle.loads(path.read_bytes())
    tensor = torch.ones(7)
    dist.all_reduce(tensor)
    assert float(tensor[0]) == n
    return chained, seen


def test_sigusr1_dumps_a_rank_that_is_blocked(tmp_path: Path) -> None:
    env = {"MCCL_DUMP_DIR": str(tmp_path)}
    (chained, _), (_, record) = run(2, signalled, str(tmp_path), group=False, env=env)
    assert set(chained) == {signal.SIGUSR1}
    assert record["mccl"]["reason"] == "SIGUSR1"
    assert [e["profiling_name"] for e in record["entries"]] == ["mccl:barrier", "mccl:all_reduce"]
    assert record["entries"][1]["state"] in ("scheduled", "started")
    assert record["entries"][1]["mccl"]["waiting_for"] in (1, None)
    assert read(tmp_path, 0)["pg_config"], "signals after the group's end must keep the dump"


def messages(rank: int, n: int) -> list[dict[str, Any]]:
    tensor = torch.ones(5, dtype=torch.float64)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor)  # of a size seen before
    (dist.send if rank == 0 else dist.recv)(tensor, 1 - rank)
    found: list[dict[str, Any]] = flight_record()["entries"]
    return found


def test_messages_are_told_from_collectives() -> None:
    for rank, entries in enumerate(run(2, messages, env={"MCCL_RECORD_STACKS": "1"})):
        assert [e["is_p2p"] for e in entries] == [False, False, True]
        assert entries[2]["profiling_name"] == ("mccl:send 0->1", "mccl:recv 1<-0")[rank]
        assert entries[2]["input_sizes"] == [[5]]
        assert entries[2]["collective_seq_id"] == 2
        assert [e["record_id"] for e in entries] == [0, 1, 2]
        assert [e["frames"][0]["name"] for e in entries] == ["messages"] * 3


def test_a_dump_that_cannot_be_written_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    assert mccl.dump_flight_recorder(tmp_path / "file" / "below") is None
    assert "cannot be written" in caplog.text
    caplog.clear()

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        assert mccl.dump_flight_recorder(tmp_path) is None
    assert "No space left" in caplog.text
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    with pytest.raises(UsageError, match="MCCL_DUMP_DIR"):
        mccl.dump_flight_recorder()
    monkeypatch.setenv("MCCL_DUMP_DIR", str(tmp_path / "made"))
    assert mccl.dump_flight_recorder() == tmp_path / "made" / f"{dump.PREFIX}0"
