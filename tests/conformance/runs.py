"""Runs one backend's tests in a child process and reads what came out."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

from tests.conformance import rewrite

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    """How one test ended: ``passed``, ``failed`` or ``skipped``, and why."""

    state: str
    reason: str = ""


def run(backend: str, world_size: int, select: str, test_seconds: int) -> dict[str, Outcome]:
    """Test name -> outcome, for one backend.

    ``select`` is pytest's ``-k``; ``test_seconds`` the limit of one test.
    """
    with tempfile.TemporaryDirectory(prefix=f"conformance-{backend}-") as name:
        folder = Path(name)
        rewrite.write(folder, backend)
        report = folder / "report.xml"
        environment = {
            **os.environ,
            "BACKEND": backend,
            "WORLD_SIZE": str(world_size),
            "TEMP_DIR": str(folder),
            "CONFORMANCE_FOLDER": str(folder),
            "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(test_seconds),
            # The fork server reads modules to preload from here.
            "PYTHONPATH": os.pathsep.join(
                [str(folder), str(PROGRAMS), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
            ),
        }
        command = [
            sys.executable,
            *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull),
            *("--rootdir", str(PROGRAMS), "--junitxml", str(report), "-k", select or "test"),
            *("--tb=short", "-W", "ignore", str(PROGRAMS / "distributed_program.py")),
        ]
        log = subprocess.run(
            command, env=environment, cwd=folder, text=True, capture_output=True, check=False
        )
        if not report.exists():
            raise RuntimeError(f"{backend}: pytest ended without a report:\n{log.stdout[-4000:]}")
        return read(report)


def read(report: Path) -> dict[str, Outcome]:
    """Outcomes from a JUnit XML file."""
    outcomes = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = case.attrib["name"]
        failure = case.find("failure")
        if failure is None:
            failure = case.find("error")
        skipped = case.find("skipped")
        if failure is not None:
            outcomes[name] = Outcome("failed", _last_error(failure.text or ""))
        elif skipped is not None:
            outcomes[name] = Outcome("skipped", skipped.attrib.get("message", ""))
        else:
            outcomes[name] = Outcome("passed")
    return outcomes


def _last_error(text: str) -> str:
    lines = [line.removeprefix("E").strip() for line in text.splitlines()]
    errors = [line for line in lines if "Error" in line and not line.startswith("File")]
    return errors[-1][:300] if errors else (lines[-1][:300] if lines else "")
