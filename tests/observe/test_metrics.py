"""Metrics, their Prometheus endpoint, and traces, on real ranks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import torch
import torch.distributed as dist

import mccl
from mccl.config import Config
from mccl.engine import Record
from mccl.errors import UsageError
from mccl.observe import prometheus
from mccl.observe.metrics import Latency, latencies
from tests.process_group.ranks import run


def counted(rank: int, n: int) -> None:
    for _ in range(5):
        dist.all_reduce(torch.ones(1000))
    dist.broadcast(torch.ones(10), 0)
    found = mccl.metrics()
    assert list(found) == [dist.group.WORLD.group_name]
    (group,) = found.values()
    assert (group.rank, group.size, group.operations, group.failed) == (rank, n, 6, 0)
    assert group.bytes_sent + group.bytes_received > 5 * 4000
    assert group.latency["all_reduce"].count == 5
    assert 0 < group.latency["all_reduce"].p50 <= group.latency["all_reduce"].p99
    assert group.bus_bandwidth > 0
    dist.barrier()
    mccl.reset_metrics()
    (group,) = mccl.metrics().values()
    assert (group.operations, group.bytes_sent, group.latency) == (0, 0, {})
    dist.destroy_process_group()
    assert mccl.metrics() == {}


def test_metrics_of_a_group() -> None:
    run(2, counted)


def test_quantiles_are_of_completed_operations() -> None:
    def record(collective: int, state: int, took: int, at: int = 100) -> Record:
        zeros = dict.fromkeys(Record.__slots__, 0)
        changes = {"collective": collective, "state": state, "submitted_us": at}
        return Record(**{**zeros, **changes, "completed_us": at + took})

    records = [record(0, 2, 1000 * i) for i in range(1, 101)]
    records += [record(0, 3, 9_000_000), record(8, 1, 0), record(8, 2, 500, at=99)]
    assert latencies(records, since_us=100) == {"all_reduce": Latency(100, 0.05, 0.099)}
    assert latencies(records)["barrier"] == Latency(1, 0.0005, 0.0005)


def scraped(rank: int, n: int) -> str:
    dist.all_reduce(torch.ones(100))
    port = prometheus.ensure_served(Config.from_env())
    assert port
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        return str(answer.read().decode())


def test_prometheus_scrapes_every_rank() -> None:
    pytest.importorskip("prometheus_client", reason="the extra 'metrics' is not installed")
    for rank, text in enumerate(run(2, scraped, env={"MCCL_METRICS_PORT": "0"})):
        assert f'mccl_operations_total{{group="0",rank="{rank}"}} 1.0' in text
        assert 'operation="all_reduce",quantile="0.99"' in text
        assert "mccl_blocked_receive_seconds_total" in text


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(UsageError, match=r"pip install 'mccl\[metrics\]'"):
        prometheus.ensure_served(Config.from_env({"MCCL_METRICS_PORT": "0"}))


def traced(rank: int, n: int, folder: str) -> None:
    works = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        dist.all_reduce(torch.ones(100))
        works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(3)]
        for work in works:
            work.wait()
    profile, both = Path(folder) / f"profile{rank}", Path(folder) / f"both{rank}"
    profiler.export_chrome_trace(str(profile))
    assert mccl.export_trace(both, beside=profile) == 4
    assert mccl.export_trace(Path(folder) / f"alone{rank}") == 4


def events(path: Path, **wanted: Any) -> list[dict[str, Any]]:
    everything = json.loads(path.read_text())["traceEvents"]
    return [e for e in everything if all(e.get(key) == value for key, value in wanted.items())]


def test_a_trace_lies_on_the_profilers_clock(tmp_path: Path) -> None:
    run(2, traced, str(tmp_path))
    for rank in range(2):
        ours = events(tmp_path / f"both{rank}", cat="mccl")
        theirs = [
            e for e in events(tmp_path / f"both{rank}", name="mccl:all_reduce")
            if e.get("cat") != "mccl" and e["ph"] == "X"
        ]  # fmt: skip
        assert [e["name"] for e in ours] == ["mccl:all_reduce"] * 4
        first = min(theirs, key=lambda e: e["ts"])
        # 50 ms: clocks are compared here, not speed.
        assert abs(min(e["ts"] for e in ours) - first["ts"]) < 50_000 + first["dur"]
        alone = events(tmp_path / f"alone{rank}", ph="X")
        assert all(e["ts"] > 1e15 for e in alone)
        tracks = {e["tid"]: e["args"]["name"] for e in events(tmp_path / f"alone{rank}", ph="M")}
        assert f"mccl rank {rank}, group 0 (default_pg)" in tracks.values()
        for track in tracks:
            on_it = sorted((e["ts"], e["ts"] + e["dur"]) for e in alone if e["tid"] == track)
            ends = [end for _, end in on_it[:-1]]
            assert all(a <= b for a, (b, _) in zip(ends, on_it[1:], strict=True))
        assert {e["pid"] for e in alone} != {os.getpid()}
