"""What ``mccl explain`` says about small dumps made by hand."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mccl.cli import main
from mccl.observe.dumps import DumpError, read

T0 = 1_700_000_000.0
"""2023-11-14 22:13:20 UTC."""


def entry(number: int, name: str = "all_reduce", *, at: float, **changes: Any) -> dict[str, Any]:
    state = changes.pop("state", "completed")
    extra = {
        "failed": False,
        "count": changes.pop("count", 10),
        "root": changes.pop("root", -1),
        "tag": changes.pop("tag", 0),
        "waiting_for": changes.pop("waiting_for", None),
        "blocked_receive_us": changes.pop("blocked", 0),
    }
    message = name.startswith(("send", "recv"))
    begun = round((T0 + at) * 1e9)
    return {
        "process_group": ("0", "default_pg"),
        "profiling_name": f"mccl:{name}",
        "collective_seq_id": number,
        "is_p2p": message,
        "input_sizes": [[10]],
        "input_dtypes": ["Float"],
        "state": state,
        "time_created_ns": begun,
        "time_discovered_started_ns": begun,
        "time_discovered_completed_ns": begun + 1000 if state == "completed" else None,
        "frames": changes.pop("frames", []),
        "mccl": extra,
    }


def write(
    folder: Path,
    rank: int,
    entries: Sequence[dict[str, Any]],
    peers: Sequence[dict[str, Any]] = (),
    world: int = 3,
) -> None:
    ranks = str(list(range(world)))
    record = {
        "version": "2.10",
        "rank": rank,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}},
        "pg_status": {"0": {"mccl": {"error": None, "peers": list(peers)}}},
        "entries": list(entries),
        "mccl": {"time_ns": round((T0 + 12.5) * 1e9)},
    }
    (folder / f"trace_{rank}").write_bytes(pickle.dumps(record))


Explain = Callable[..., tuple[int, str]]


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    def call(*words: str) -> tuple[int, str]:
        code = main(["explain", *words, str(tmp_path)])
        return code, capsys.readouterr().out

    return call


def test_a_rank_that_never_came(tmp_path: Path, explain: Explain) -> None:
    for rank in (0, 1):
        pending = entry(2, at=2.5 + rank, state="started", waiting_for=rank + 1)
        write(tmp_path, rank, [entry(1, at=1), pending])
    write(tmp_path, 2, [entry(1, at=1)])
    code, text = explain()
    assert code == 1
    assert text.splitlines()[0] == (
        "Group '0' (default_pg), ranks 0, 1, 2: dumps of 3 of 3, 2 collectives"
    )
    assert max(map(len, text.splitlines())) <= 100
    assert " ".join(" ".join(text.splitlines()[1:]).split()) == (
        "missing rank 2 never came to all_reduce of 10 Float (#2). rank 0 has been in it since "
        "22:13:22.500 UTC, for 10.000 s; rank 1 has been in it since 22:13:23.500 UTC, for "
        "9.000 s. Rank 2's newest was all_reduce of 10 Float (#1), completed "
        "waiting in all_reduce of 10 Float (#2) waits rank 0 for rank 1, rank 1 for rank 2; "
        "all of it ends at rank 2"
    )


def test_a_rank_without_a_dump_is_known_from_its_peers(tmp_path: Path, explain: Explain) -> None:
    heard = {
        "rank": 2, "connected": True, "silent_us": 2_500_000, "issued": 1, "completed": 1,
        "collective": None,
    }  # fmt: skip
    write(tmp_path, 0, [entry(1, at=1), entry(2, at=2, state="started")], [heard])
    write(tmp_path, 1, [entry(1, at=1), entry(2, at=2, state="started")])
    code, text = explain("--json")
    assert code == 1
    findings = json.loads(text)
    assert [(f["kind"], f["ranks"], f["sequence"]) for f in findings] == [
        ("missing", [2], 2),
        ("no-dump", [2], None),
    ]
    assert "last heard of 2.500 s before the dump: in no collective" in findings[0]["text"]


def test_a_rank_that_called_something_else(tmp_path: Path, explain: Explain) -> None:
    frames = [{"name": "step", "filename": "train.py", "line": 12}]
    for rank in (0, 1):
        write(tmp_path, rank, [entry(1, at=1), entry(2, at=2, state="started")])
    odd = entry(2, "broadcast", at=2, state="started", root=0, frames=frames)
    write(tmp_path, 2, [entry(1, at=1), odd])
    code, text = explain("--json")
    first = json.loads(text)[0]
    assert code == 1
    assert (first["kind"], first["ranks"], first["sequence"]) == ("mismatch", [2], 2)
    assert first["text"] == (
        "the ranks called different things as #2: ranks 0, 1 called all_reduce of 10 Float; "
        "rank 2 called broadcast of 10 Float (root 0) at step (train.py:12)"
    )


def test_different_sizes_of_two_ranks_blame_neither_alone(tmp_path: Path, explain: Explain) -> None:
    for rank in (0, 1):
        write(tmp_path, rank, [entry(1, at=1, count=10 + rank, state="started")], world=2)
    code, text = explain("--json")
    assert code == 1
    assert json.loads(text)[0]["ranks"] == [0, 1]


def test_a_circle(tmp_path: Path, explain: Explain) -> None:
    for rank in range(3):
        write(tmp_path, rank, [entry(1, at=1, state="started", waiting_for=(rank + 1) % 3)])
    code, text = explain()
    assert code == 1
    assert "they wait in a circle" in text
    assert "never came" not in text


def test_a_message_nobody_sent(tmp_path: Path, explain: Explain) -> None:
    write(tmp_path, 0, [entry(0, "send 0->1", at=1, tag=7)], world=2)
    received = entry(0, "recv 1<-0", at=1, tag=7)
    write(tmp_path, 1, [received, entry(0, "recv 1<-0", at=2, tag=7, state="started")], world=2)
    code, text = explain("--json")
    finding = json.loads(text)[0]
    assert code == 1
    assert (finding["kind"], finding["ranks"]) == ("message", [0])
    assert "recv from rank 0 with tag 7 waits" in finding["text"]
    assert "it is receive 2 of that kind, and rank 0 has sent 1" in finding["text"]


def test_what_broke_the_group_is_told_once(tmp_path: Path, explain: Explain) -> None:
    error = {"failure": "PEER_DIED", "culprit": 2, "reporter": 1, "message": "connection reset"}
    for rank in (0, 1):
        failed = entry(1, at=1, state="started")
        failed["mccl"]["failed"] = True
        write(tmp_path, rank, [failed])
        file = tmp_path / f"trace_{rank}"
        record = pickle.loads(file.read_bytes())
        record["pg_status"]["0"]["mccl"]["error"] = error
        file.write_bytes(pickle.dumps(record))
    code, text = explain("--json")
    found = [f for f in json.loads(text) if f["kind"] == "failure"]
    assert code == 1
    assert [(f["text"], f["ranks"]) for f in found] == [
        ("PEER_DIED, culprit rank 2, as ranks 0, 1 know it: connection reset", [2])
    ]


def test_nothing_wrong(tmp_path: Path, explain: Explain) -> None:
    for rank in range(3):
        write(tmp_path, rank, [entry(n, at=n) for n in range(1, 5)])
    code, text = explain()
    assert code == 0
    assert "every recorded operation completed" in text


def test_the_slowest_rank(tmp_path: Path, explain: Explain) -> None:
    for rank in range(3):
        blocked = 100 if rank == 1 else 20_000
        write(tmp_path, rank, [entry(n, at=n, blocked=blocked) for n in range(1, 5)])
    code, text = explain()
    assert code == 0
    assert "rank 1 is the slowest" in text
    assert "0.1 ms each for bytes, the others 20.0 ms" in " ".join(text.split())


class Evil:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("exit 1",)


def test_dumps_that_cannot_be_read(tmp_path: Path, explain: Explain) -> None:
    assert explain()[0] == 2
    bad = tmp_path / "bad_0"
    for content, why in (
        (b"nonsense", "not a flight record"),
        (pickle.dumps({"entries": Evil()}), "plain values only"),
        (pickle.dumps([1]), "no entries"),
        (pickle.dumps({"entries": [], "pg_config": {"0": {}}}), "schema"),
    ):
        bad.write_bytes(content)
        with pytest.raises(DumpError, match=why):
            read([bad])
        assert explain()[0] == 2
    write(tmp_path, 0, [])
    bad.write_bytes((tmp_path / "trace_0").read_bytes())
    with pytest.raises(DumpError, match="both of rank 0"):
        read([tmp_path])
