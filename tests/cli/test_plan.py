"""``mccl plan``: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mccl.cli import main

PAPER = ["--hop", "306us", "--group", "10"]


def test_a_table_and_advice(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--hosts", "80", "--bucket-mb", "25,50", "--model", "vit-113m", *PAPER]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "1.238 GB/s TCP goodput, 306 µs a hop; step of vit-113m" in out
    assert "two_level (10)" in out
    assert "> Raise bucket_cap_mb to 32" in out
    assert "MCCL_GROUPS=10" in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "--hosts", "24", "--json", "--model", "resnet-31m", "--decode-layers", "32"]
    assert main([*words, *PAPER]) == 0
    found = json.loads(capsys.readouterr().out)
    ring = next(row for row in found["rows"] if (row["world"], row["algorithm"]) == (24, "ring"))
    assert ring["busbw"] == pytest.approx(1.23e9, rel=0.005)
    assert ring["step"]["seconds"] == pytest.approx(0.305, rel=0.02)
    assert any("Accumulate gradients" in text for text in found["advice"])
    assert any("bfloat16" in text for text in found["advice"])
    tensor = [line for line in found["decode"] if line["strategy"] == "tensor parallel"]
    assert all(line["per_sequence"] < 26 for line in tensor if line["hosts"] > 4)


def test_slow_uplinks_change_the_forecast(capsys: pytest.CaptureFixture[str]) -> None:
    shares = []
    for factor in ("1", "40"):
        words = ["plan", "--hosts", "4,20", "--json", "--oversubscription", factor, *PAPER]
        assert main(words) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        shares.append([r["share"] for r in rows if (r["world"], r["algorithm"]) == (20, "ring")])
    assert shares[1][0] < 0.3 < shares[0][0]


def test_parameters_from_measurements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mccl.model import PAPER as MODEL

    cases = [
        {
            "series": "mccl",
            "labels": {"collective": "all_reduce", "ranks": world, "nbytes": nbytes},
            "rounds": [[MODEL.ring(world, nbytes)]],
            "unit": "s",
        }
        for world in (4, 8)
        for nbytes in (1 << 20, 1 << 24, 1 << 26)
    ]
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"schema": "mccl-bench/1", "cases": cases}))
    assert main(["plan", "--hosts", "4", "--fit", str(record)]) == 0
    out = capsys.readouterr().out
    assert "1.238 GB/s TCP goodput, 306 µs a hop" in out
    assert "gamma is not determined" in out


def test_a_figure(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib")
    path = tmp_path / "plan.png"
    assert main(["plan", "--hosts", "4,8", "--model", "synthetic", "--plot", str(path)]) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--hosts", "0"], "above 0"),
        (["--hosts", "many"], "no list of numbers"),
        (["--link", "fast"], "link 'fast' not understood"),
        (["--rtt", "5"], "time '5' not understood"),
        (["--model", "gpt"], "vit-113m"),
        (["--step-ms", "5"], "give both"),
        (["--group", "1"], "2 hosts or more"),
        (["--fit", "/nowhere.json"], "/nowhere.json"),
    ],
)
def test_refusals_say_what_is_accepted(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_tuning_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mccl.model import Network, all_reduce_seconds
    from mccl.model.choose import candidates
    from mccl.plans import Collective, choose
    from mccl.plans.tuning import parse

    file = tmp_path / "tuned.json"
    words = ["plan", "--hosts", "6,24", "--hop", "306us", "--group", "8", "--tune", str(file)]
    assert main([*words, "--oversubscription", "8", "--dealt"]) == 0
    assert f"MCCL_TUNING={file}" in capsys.readouterr().out
    found = parse(file.read_text())
    dealt = tuple(tuple(range(first, 24, 3)) for first in range(3))
    assert [(e.world, e.groups) for e in found.entries] == [(6, None), (24, None), (24, dealt)]
    network = Network(24, 1.2375e9, 306e-6, switches=dealt, oversubscription=8)
    table = found.table(24, dealt, 1 << 18)
    for nbytes in (1 << 10, 300_000, 5 << 20, 25 << 20):
        times = {
            name: all_reduce_seconds(name, network, nbytes, groups=dealt)
            for name in candidates(24, dealt)
        }
        name = choose(Collective.ALL_REDUCE, nbytes // 4, 4, 24, grouped=True, table=table)
        assert times[name] <= 1.05 * min(times.values()), (nbytes, name, times)
