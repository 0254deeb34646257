"""Tuning files: what is written is read back, and nonsense is refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mccl.plans import Collective, choose
from mccl.plans.choose import Rule
from mccl.plans.tuning import Entry, dump, parse

AR, RS = Collective.ALL_REDUCE, Collective.REDUCE_SCATTER
KIB = 1 << 10
GROUPS = ((0, 1), (2, 3))
FLAT = Entry(4, None, {AR: (Rule("double_tree", max_bytes=4 * KIB), Rule("ring"))})
GROUPED = Entry(4, GROUPS, {AR: (Rule("two_level_doubling", max_bytes=KIB), Rule("two_level"))})


def test_what_is_written_is_read_back() -> None:
    found = parse(dump([FLAT, GROUPED], {"hop": 1e-3}))
    assert found.entries == (FLAT, GROUPED)
    assert found.knows(4)
    assert not found.knows(5)


def test_exact_ranks_and_groups_or_nothing() -> None:
    found = parse(dump([FLAT, GROUPED], {}))
    for groups, small, large in ((None, "double_tree", "ring"), (GROUPS, "ring", "two_level")):
        table = found.table(4, groups, 256 * KIB)
        assert table is not None
        names = [
            choose(AR, nbytes // 4, 4, 4, grouped=groups is not None, table=table)
            for nbytes in (2 * KIB, 8 * KIB)
        ]
        assert names == [small if groups is None else "two_level", large]
    assert found.table(3, None, 256 * KIB) is None
    assert found.table(4, ((0, 2), (1, 3)), 256 * KIB) is None


def test_collectives_that_the_file_leaves_out_stay_as_they_are() -> None:
    table = parse(dump([FLAT], {})).table(4, None, 256 * KIB)
    assert table is not None
    for collective in Collective:
        if collective is not AR:
            for count in (1, 1 << 20):
                assert choose(collective, count, 4, 4, table=table) == choose(
                    collective, count, 4, 4
                )


def test_low_precision_still_rounds_once() -> None:
    table = parse(dump([FLAT], {})).table(4, None, 256 * KIB)
    chosen = [choose(AR, n // 2, 2, 4, low_precision=True, table=table) for n in (KIB, 1 << 20)]
    assert chosen == ["double_tree", "direct"]
    assert choose(AR, 50 * KIB, 2, 4, low_precision=True, table=table) == "ring"


def altered(**change: Any) -> str:
    data = json.loads(dump([FLAT], {}))
    data["tables"][0].update(change)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("junk", "not JSON"),
        ('{"schema": "other"}', "schema is 'other'"),
        ("[]", "schema is None"),
        ('{"schema": "mccl-tuning/1"}', "not of the expected form"),
        (altered(world="4"), "no number of ranks"),
        (altered(rules={"all_sum": []}), "no collective"),
        (altered(rules={"all_reduce": [["chain", None]]}), "no algorithm 'chain'"),
        (altered(rules={"all_reduce": [["two_level", None]]}), "no algorithm 'two_level'"),
        (altered(rules={"all_reduce": [["ring", 5]]}), "the last null"),
        (altered(rules={"all_reduce": [["ring", 5], ["direct", 5], ["ring", None]]}), "grow"),
        (altered(rules={"all_reduce": []}), "no rule"),
        (altered(groups=[[0, 1], [1, 2, 3]]), "exactly once"),
        (dump([FLAT], {}).replace(" ]}", ", ]}"), "not JSON"),
    ],
)
def test_nonsense_is_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse(text)


def test_two_tables_for_one_case_are_refused() -> None:
    data = json.loads(dump([FLAT], {}))
    data["tables"] *= 2
    with pytest.raises(ValueError, match="two tables for 4 ranks"):
        parse(json.dumps(data))
