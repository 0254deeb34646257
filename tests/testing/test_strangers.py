"""Strangers at the door of a job that trains: what they try, and what is made of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from mccl.testing import strangers
from mccl.testing.knock import Answer, Attempt
from mccl.testing.strangers import Findings, Trained

HELD = {"descriptors": 20.0, "threads": 4.0, "resident_bytes": 1e8}
GOOD = Findings(
    Counter({(Attempt.REPLAY, Answer.CHALLENGE): 3}),
    [HELD, HELD],
    [HELD, HELD],
    [Trained(50, "a", 1.0)] * 2,
    [Trained(50, "a", 1.0)] * 2,
)


@pytest.mark.timeout(240)
def test_strangers_do_no_harm_and_none_gets_in() -> None:
    found = strangers.run(2, 240, 5)
    assert found.good, strangers.report(found)
    assert sum(found.answers.values()) == 240
    assert found.answers[Attempt.CLAIMED_TWICE, Answer.REFUSED] > 0
    assert found.answers[Attempt.REPLAY, Answer.CHALLENGE] > 0
    assert found.answers[Attempt.WRONG_SECRET, Answer.CHALLENGE] > 0


def test_harm_is_seen() -> None:
    assert GOOD.good
    other = [Trained(50, "a", 1.0), Trained(50, "b", 1.0)]
    for harm in (
        {"answers": Counter({(Attempt.CLAIMED_TWICE, Answer.ADMITTED): 1})},
        {"answers": Counter({(Attempt.RANDOM, Answer.CHALLENGE): 1})},
        {"after": [HELD, HELD | {"descriptors": 21.0}]},
        {"after": [HELD, HELD | {"threads": 5.0}]},
        {"undisturbed": other},
        {"undisturbed": []},
    ):
        assert not replace(GOOD, **harm).good  # type: ignore[arg-type]


def test_the_report_says_what_came_back() -> None:
    text = strangers.report(GOOD)
    assert "a challenge, then nothing: 3" in text
    assert "bit for bit the same: yes" in text
