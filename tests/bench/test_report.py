"""The report: every kind of record becomes a figure, the page needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mccl.bench import overlap, train
from mccl.bench.record import Case, Label, Record

pytest.importorskip("matplotlib", reason="figures need the bench extra")
pytestmark = pytest.mark.timeout(90)


def sweep_case(series: str, ranks: int, nbytes: int, seconds: float) -> Case:
    labels: dict[str, Label] = {
        "collective": "all_reduce",
        "ranks": ranks,
        "nbytes": nbytes,
        "factor": 1.5,
        "count": nbytes // 4,
        "requested": nbytes,
        "in_place": True,
        "dtype": "float32",
        "redop": "sum",
    }
    facts = {"wrong": 0.0, "cpu_s": 1.0, "wire_bytes": 1e9}
    return Case(series, labels, [[seconds], [seconds * 1.1]], facts=facts)


def everything() -> list[Record]:
    sizes = (1 << 10, 1 << 20)
    records = []
    for hosts in (4, 8):
        cases = [sweep_case(s, hosts, n, 0.1) for s in ("mccl", "gloo", "tcp") for n in sizes]
        settings = {
            "title": f"{hosts} hosts",
            "hosts": hosts,
            "rate_bits": 1e8 * hosts,
            "mtu": 1500,
            "series": ["mccl"],
        }
        records.append(Record("all_reduce", settings, cases))
        ways = [
            Case("mccl", {"way": w, "ranks": hosts}, [[1.0 + i]])
            for i, w in enumerate(overlap.WAYS)
        ]
        records.append(
            Record(
                "overlap",
                settings
                | {"sizes": [4] * 18, "schedule": "even", "device": "simulated", "bound": 0.944},
                ways,
            )
        )
    cases = [sweep_case(s, 2, n, 0.1) for s in ("mccl", "gloo", "openmpi-tcp") for n in sizes]
    common = {"title": "loopback", "leader": "mccl", "series": ["mccl"], "peers": {"x": "runs"}}
    records += [Record("compare", dict(common), cases), Record("peers", dict(common), cases)]
    steps = [
        Case(s, {"ranks": r, "batch": 8}, [[0.1, 0.2]])
        for r in (1, 2)
        for s in (train.COMPUTE, "mccl", train.STAGED)
    ]
    records.append(
        Record("train", {"title": "x", "backend": "mccl", "parameters": 10, "buckets": [40]}, steps)
    )
    curves = [
        Case(
            "mccl",
            {"ranks": r, "what": w, "rate": 1e-3},
            [[1.0, 0.5 / r]],
            facts={"seconds": 1.0, "same_weights": 1.0},
        )
        for r in (1, 2)
        for w in ("step", "validation_loss", "validation_accuracy", "training_loss")
    ]
    records.append(
        Record(
            "converge",
            {
                "title": "x",
                "backend": "mccl",
                "data": "digits (8)",
                "parameters": 10,
                "steps": 2,
                "batch": 8,
            },
            curves,
        )
    )
    facts = {
        "operations": 5.0,
        "wrong": 0.0,
        "wire_bytes": 1e9,
        "busy_s": 1.0,
        "cpu_s": 0.5,
        "elapsed_s": 60.0,
    }
    usage = [
        Case("mccl", {"ranks": 1, "rank": 0, "what": w}, [[1e8, 1e8]], facts=facts)
        for w in ("resident_bytes", "threads", "descriptors")
    ]
    records.append(Record("stress", {"title": "x"}, usage))
    return records


def test_every_kind_is_drawn_into_one_page(command: Callable[..., int], tmp_path: Path) -> None:
    for number, record in enumerate(everything()):
        record.save(tmp_path / f"{number}.json")
    assert command("report", str(tmp_path), "--out", str(tmp_path / "out")) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    images = sorted(path.name for path in (tmp_path / "out").glob("*.png"))
    assert images == [
        "cluster-0.png",
        "compare-2.png",
        "converge.png",
        "overlap-cluster-0.png",
        "peers-2.png",
        "stress.png",
        "train.png",
    ]
    assert page.count("data:image/png;base64,") == len(images)
    assert not re.findall(r'(?:src|href)="(?!data:)', page), "the page asks for another file"
    assert "cores" in page


def test_titles_state_what_is_drawn() -> None:
    from mccl.bench import figures
    from mccl.bench.report import joined_clusters

    ((whole, sources),) = joined_clusters(everything(), "all_reduce")
    assert [source.settings["hosts"] for source in sources] == [4, 8]
    figure = figures.cluster_bandwidth(whole)
    assert "100.0" in figure.axes[1].get_title()
    assert "raw rate" in figure.axes[0].get_ylabel(), "links of two rates share no unit"
    for axis in figure.axes:
        assert axis.get_xlabel()
        assert axis.get_ylabel()


def test_a_newer_record_of_the_same_cluster_counts() -> None:
    from mccl.bench.report import joined_clusters

    old, new = (everything()[0] for _ in range(2))
    new.cases[0].rounds = [[9.0]]
    ((whole, _),) = joined_clusters([old, new], "all_reduce")
    assert whole.cases[0].rounds == [[9.0]]
    assert len(whole.cases) == len(old.cases)


def test_an_empty_folder_is_named(
    command: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("report", str(tmp_path)) == 2
    assert str(tmp_path) in capsys.readouterr().err
