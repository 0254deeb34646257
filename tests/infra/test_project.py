"""Rules of the house that a program can check, and what `import torch` meets."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src" / "mccl").rglob("*.py"))


def run(code: str, *flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environ},
        check=False,
    )


def reads_environment(tree: ast.AST) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"))
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    ]


# _autoload asks torch's own switch; the launcher and what starts processes hand the environment on.
MAY_READ = {"config.py", "_autoload.py"}
MAY_PASS_ON = re.compile(
    r"\{\*\*os\.environ|dict\(os\.environ\)|os\.environ\.(copy|update|setdefault)\(|os\.environ \|"
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_only_the_configuration_reads_the_environment(path: Path) -> None:
    if path.name in MAY_READ and path.parent.name == "mccl":
        return
    lines = path.read_text().splitlines()
    found = [
        number
        for number in reads_environment(ast.parse(path.read_text()))
        if not MAY_PASS_ON.search(lines[number - 1])
    ]
    assert not found, f"{path}:{found}: take a mccl.config.Config instead"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_files_stay_small_and_finished(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 600, "one job a file: split it"
    marks = re.findall(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b", text)
    assert not marks
    handlers = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ExceptHandler)]
    assert all(handler.type is not None for handler in handlers), "bare except"


def test_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "tools/make_docs.py", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_import_registers_the_backend() -> None:
    done = run("import mccl, torch.distributed as d; print(d.Backend.backend_list)")
    assert "mccl" in done.stdout, done.stderr


def test_import_torch_alone_loads_an_installed_package(tmp_path: Path) -> None:
    info = tmp_path / "mccl-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mccl\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nmccl = mccl._autoload:load\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    done = run("import torch.distributed as d; print(d.Backend.backend_list)", PYTHONPATH=path)
    assert "mccl" in done.stdout, done.stderr


def test_registration_that_fails_warns_and_never_raises() -> None:
    code = (
        "import torch.distributed as d\n"
        "def broken(*a, **k): raise RuntimeError('registry is full')\n"
        "d.Backend.register_backend = broken\n"
        "d.Backend.backend_list = [b for b in d.Backend.backend_list if b != 'mccl']\n"
        "import mccl._autoload as a; a.load(); print('alive')"
    )
    done = run(code, "-W", "error::RuntimeWarning")
    assert done.stdout.strip() == "alive", done.stderr
    assert "registry is full" in done.stderr
    assert "RuntimeWarning" in done.stderr


def test_package_alone_does_not_import_torch_when_installed(tmp_path: Path) -> None:
    info = tmp_path / "mccl-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mccl\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\nmccl = mccl._autoload:load\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    done = run("import mccl.config, sys; print('torch' in sys.modules)", PYTHONPATH=path)
    assert done.stdout.strip() == "False", done.stderr
