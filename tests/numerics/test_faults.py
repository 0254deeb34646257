"""Every planted fault is found, in the phase it was planted in, and blamed on its layer alone."""

from __future__ import annotations

import pytest
import torch

from mccl.numerics import check_model

from .faults import FAULTS, Fault


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found_and_blamed(fault: Fault) -> None:
    torch.manual_seed(1)
    device = fault.device()
    report = check_model(fault.model(), fault.inputs(), device=device)
    assert device.fired, "the wrong kernel never ran"
    assert report.blamed() == [fault.layer], str(report)
    assert fault.phase in {finding.phase for finding in report.findings}, str(report)
    if fault.kinds:
        assert {finding.kind for finding in report.findings} <= set(fault.kinds), str(report)
    assert report.exit_code == 1


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_same_model_is_fine_without_the_fault(fault: Fault) -> None:
    torch.manual_seed(1)
    report = check_model(fault.model(), fault.inputs(), device="cpu")
    assert report.ok, str(report)
    assert report.end_to_end is not None
    assert report.end_to_end.ok


def test_there_are_thirty_faults() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 30
