"""The examples run as their first lines say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mccl import cli

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["gloo", "mccl"])
def test_train(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    script = str(EXAMPLES / "train.py")
    assert cli.main(["run", "-n", "2", script, "--backend", backend]) == 0
    first, second = re.findall(r"mean loss ([\d.]+)", capfd.readouterr().out)
    assert float(second) < float(first)
