"""What every test shares: an environment without settings, and a check for leftover processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Ranks of a test share the cores; more threads each only makes them wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the person who runs the tests must not change their outcome."""
    for name in list(os.environ):
        if name.startswith("MCCL_") or name == "GLOO_SOCKET_IFNAME":
            monkeypatch.delenv(name)


def _children() -> set[int]:
    try:
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    except FileNotFoundError:  # not Linux
        return set()
    return {int(pid) for pid in text.split()}


@pytest.fixture(autouse=True)
def _no_process_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves a process behind fails, and the process is ended."""
    before = _children()
    yield
    left = {pid for pid in _children() - before if not _is_helper(pid)}
    for pid in left:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert not left, f"{request.node.nodeid} left {len(left)} processes behind"


def _is_helper(pid: int) -> bool:
    """multiprocessing's own resource tracker and fork server live as long as the test run."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return True
    return b"resource_tracker" in line or b"forkserver" in line
