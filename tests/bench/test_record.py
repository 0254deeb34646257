"""Records: what is written is what is read, and summaries say what they claim."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from mccl.bench.record import Case, Record, default_path, load
from mccl.errors import UsageError


def case(series: str, rounds: list[list[float]], **labels: int) -> Case:
    return Case(series, dict(labels), rounds, facts={"wrong": 1.0})


def test_median_and_spread_over_rounds() -> None:
    measured = case("a", [[1.0, 2.0, 9.0], [3.0, 4.0, 5.0]])
    assert measured.median == 3.5
    assert measured.spread == (2.0, 4.0)
    assert case("a", [[1.0, 2.0, 9.0]]).spread == (1.0, 9.0)
    assert math.isnan(case("a", []).median)


def test_rounds_merge_and_facts_add_up() -> None:
    record = Record("test")
    record.add_rounds([case("a", [[1.0]], ranks=2), case("a", [[5.0]], ranks=4)])
    record.add_rounds([case("a", [[2.0]], ranks=2)])
    merged = record.one("a", ranks=2)
    assert merged is not None
    assert merged.rounds == [[1.0], [2.0]]
    assert merged.facts["wrong"] == 2.0
    assert record.labels("ranks") == [2, 4]
    assert record.one("b") is None
    with pytest.raises(UsageError, match="2 cases"):
        record.one("a")


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    record = Record("test", {"title": "x"}, [case("a", [[1.0]], ranks=2)], ["a note"])
    path = record.save(default_path(record, tmp_path / "new"))
    again = load(path)
    assert again == record
    assert again.machine.cores > 0
    assert again.machine.sentence()
    assert "mccl" in again.command


@pytest.mark.parametrize("text", ["no json", "[]", json.dumps({"schema": "other/1"})])
def test_a_foreign_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"x\.json"):
        load(path)
