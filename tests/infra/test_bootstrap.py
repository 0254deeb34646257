"""The set-up script: what is missing is named first, what is done is not redone."""

from __future__ import annotations

import ast
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "bootstrap.py"


@pytest.fixture(scope="module")
def bootstrap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_old_python_can_read_it() -> None:
    ast.parse(SCRIPT.read_text(), feature_version=(3, 7))


def test_old_python_is_named_with_what_to_do(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 6))
    monkeypatch.setattr(platform, "python_version", lambda: "3.9.6")
    said = bootstrap.python_problem()
    assert "3.9.6" in said
    assert "3.11 or newer" in said
    assert "PYTHON=" in said


def test_missing_compiler_is_named(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    name, problem = bootstrap.compiler()
    assert name == ""
    assert "No C++ compiler" in problem
    assert ("xcode-select --install" if bootstrap.MAC else "apt install g++") in problem


def test_compiler_without_the_standard_is_named(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = tmp_path / "old++"
    old.write_text("#!/bin/sh\necho 'unrecognized option -std=c++20' >&2\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    _, problem = bootstrap.compiler()
    assert "cannot compile C++20 (unrecognized option -std=c++20)" in problem


def test_full_disk_is_named(bootstrap: ModuleType, tmp_path: Path) -> None:
    assert bootstrap.disk_problem(0.0, tmp_path / ".venv") is None
    assert "GiB are needed" in bootstrap.disk_problem(1e9, tmp_path / ".venv")


def test_nothing_is_made_when_something_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--for", "demo", "--venv", str(tmp_path / "venv")],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "CXX": "/nonexistent/c++"},
        check=False,
    )
    assert done.returncode == 2
    assert "/nonexistent/c++" in done.stderr
    assert "Nothing was changed" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_step_is_fresh_until_its_inputs_change(bootstrap: ModuleType, tmp_path: Path) -> None:
    stamps = bootstrap.Stamps(tmp_path / "stamps.json")
    fresh, digest = stamps.fresh("packages", "numpy==2")
    assert not fresh
    stamps.mark("packages", digest)
    again = bootstrap.Stamps(tmp_path / "stamps.json")
    assert again.fresh("packages", "numpy==2")[0]
    assert not again.fresh("packages", "numpy==3")[0]
    (tmp_path / "stamps.json").write_text("{half")
    assert not bootstrap.Stamps(tmp_path / "stamps.json").fresh("packages", "numpy==2")[0]


def test_failing_step_shows_its_output_and_command(
    bootstrap: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        bootstrap.run("building", ["sh", "-c", "echo disk is on fire; exit 3"])
    said = capsys.readouterr().err
    assert "disk is on fire" in said
    assert "building: failed" in said


def test_every_package_it_installs_is_pinned(bootstrap: ModuleType) -> None:
    pins = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().split()}
    wanted = {name for names in bootstrap.PACKAGES.values() for name in names}
    assert wanted <= pins
    assert bootstrap.TORCH in (ROOT / "constraints.txt").read_text()


def test_the_test_extra_is_what_make_test_installs(bootstrap: ModuleType) -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[<>=\[ ]", line)[0] for line in extra["test"]}
    assert names <= set(bootstrap.PACKAGES["test"])
