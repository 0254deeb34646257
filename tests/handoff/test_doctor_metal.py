"""``mccl doctor --metal``: its checks on CPU tensors, and what it says when something is wrong."""

from __future__ import annotations

import io

import pytest
import torch

from mccl.doctor import metal
from mccl.doctor.metal_checks import CHECKS, Judge, Violated

pytestmark = pytest.mark.timeout(180)


def test_the_checks_pass_where_nothing_can_go_wrong() -> None:
    checks = ("temporaries", "views", "backward", "mixed_devices")
    outcomes = metal.run_mode("cpu", {}, checks)
    assert [outcome.check for outcome in outcomes] == list(checks)
    assert all(outcome.passed for outcome in outcomes), outcomes


def test_a_rank_that_cannot_start_fails_its_checks() -> None:
    first, second = metal.run_mode("cpu", {"MCCL_EVENT_SYNC": "perhaps"}, ("views", "backward"))
    assert not first.passed
    assert "MCCL_EVENT_SYNC" in first.detail
    assert second.detail == "not reached"


def test_the_judge_sees_a_wrong_element() -> None:
    judge = Judge(0, 2, torch.device("cpu"))
    good = torch.full((4,), 9.0)
    judge.look(good, 3)
    judge.verdict("fine")
    good[2] = 8.0
    judge.look(good, 3)
    with pytest.raises(Violated, match="1 elements wrong: spoilt"):
        judge.verdict("spoilt")


def test_without_a_gpu_the_doctor_says_where_to_run_it() -> None:
    if torch.backends.mps.is_available():
        pytest.skip("this machine has an MPS device")
    out = io.StringIO()
    assert metal.run(out=out) == 2
    assert "Apple silicon" in out.getvalue()


def test_every_check_has_a_title() -> None:
    assert all((check.__doc__ or "").strip() for check in CHECKS.values())
