"""The ``mccl`` command itself: what it offers, what it imports, what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mccl import cli

ROOT = Path(__file__).resolve().parents[2]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("mccl 0.")


def test_no_command_shows_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    for name in ("run", "demo", "doctor"):
        assert name in shown


def test_unknown_command_names_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["dance"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "dance" in said
    assert "doctor" in said


@pytest.mark.parametrize("name", sorted(cli.available()))
def test_every_command_has_a_parser(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    assert f"mccl {name}" in capsys.readouterr().out


def test_only_the_command_asked_for_is_imported() -> None:
    code = (
        "import sys; from mccl.cli import build_parser; build_parser('run')\n"
        "print(sorted(m for m in sys.modules if m.startswith('mccl.cli.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=True,
    )
    assert done.stdout.strip() == "['mccl.cli.hosts', 'mccl.cli.run']"


def test_bad_setting_ends_with_its_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text("")
    monkeypatch.setenv("MCCL_NSOCKS", "many")
    assert cli.main(["run", str(script)]) == 2
    assert "MCCL_NSOCKS='many'" in capsys.readouterr().err
