"""``mccl run``: local ranks through the elastic launcher, hosts through (a stand-in for) ssh."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mccl import cli
from mccl.cli.run import handed_on, launcher_arguments

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import os, sys
with open(os.path.join(sys.argv[1], os.environ["RANK"]), "w") as file:
    file.write(os.environ["WORLD_SIZE"] + " " + " ".join(sys.argv[2:]))
if sys.argv[2] == os.environ["RANK"]:
    sys.exit(3)
"""

# Stands where ssh would: forgets the options, "connects" to this machine, and tells who was called.
SSH = """#!/bin/sh
while [ "$1" != "${1#-}" ]; do case "$1" in -o) shift 2;; *) shift;; esac; done
[ "$1" = unreachable ] && exit 255
shift
exec sh -c "$1"
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def mccl(*words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    if path is not None:
        environ["PATH"] = f"{path}{os.pathsep}{environ['PATH']}"
    return subprocess.run(
        [sys.executable, "-m", "mccl", *words],
        capture_output=True,
        text=True,
        timeout=100,
        env=environ,
        check=False,
    )


def test_local_ranks_get_their_arguments(script: Path, tmp_path: Path) -> None:
    done = mccl("run", "-n", "2", str(script), str(tmp_path), "none", "--flag")
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["2 none --flag"] * 2


def test_failed_rank_gives_its_exit_code_and_name(script: Path, tmp_path: Path) -> None:
    done = mccl("run", "-n", "2", str(script), str(tmp_path), "1")
    assert done.returncode == 3
    assert "rank 1" in done.stderr
    assert "exit code 3" in done.stderr


def test_hosts_join_one_job(script: Path, tmp_path: Path) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    hosts = tmp_path / "hosts.txt"
    # Both names lead to this machine; the first one's address is where the ranks meet.
    hosts.write_text('{"hosts": [{"ssh": "a", "ips": ["127.0.0.1"]}, {"ssh": "b"}]}')
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    where = ["--hosts", str(hosts), "--master", f"127.0.0.1:{port}"]
    done = mccl("run", *where, str(script), str(tmp_path), "none", path=ssh.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["2 none"] * 2


def test_unreachable_host_ends_the_job_by_name(script: Path, tmp_path: Path) -> None:
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    hosts = "localhost,unreachable"
    done = mccl("run", "--hosts", hosts, str(script), str(tmp_path), "none", path=ssh.parent)
    assert done.returncode == 255
    assert "unreachable: ssh could not connect" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.py"], "no such file"),
        (["--nnodes", "2", "SCRIPT"], "--master"),
        (["--nnodes", "2", "--master", "a", "SCRIPT"], "--node-rank"),
        (["--master", "a", "SCRIPT"], "--nnodes"),
        (["--hosts", "a", "--nnodes", "2", "SCRIPT"], "one or the other"),
        (["--hosts", "no/such/file", "SCRIPT"], "no such file"),
        (["--nnodes", "2", "--node-rank", "0", "--master", "a:b", "SCRIPT"], "HOST:PORT"),
    ],
)
def test_bad_combinations_are_named(
    words: list[str], said: str, script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = cli.main(["run", *[str(script) if word == "SCRIPT" else word for word in words]])
    assert code == 2
    assert said in capsys.readouterr().err


def parsed(*words: str) -> list[str]:
    return launcher_arguments(cli.build_parser("run").parse_args(["run", *words]))


def test_launcher_arguments() -> None:
    assert "--standalone" in parsed("-n", "2", "s.py")
    fixed = parsed("--nnodes", "2", "--node-rank", "1", "--master", "a:5", "s.py", "--x")
    assert fixed[-8:-2] == ["--node-rank", "1", "--master-addr", "a", "--master-port", "5"]
    assert fixed[-2:] == ["s.py", "--x"]
    elastic = parsed("--nnodes", "1:4", "--master", "a", "s.py")
    assert elastic[elastic.index("--rdzv-endpoint") + 1] == "a:29400"


def test_secret_does_not_travel_on_a_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"MCCL_SECRET": "battery staple", "MCCL_NSOCKS": "2", "HOME": "/"}
    assert handed_on(environ) == [("MCCL_NSOCKS", "2")]
    assert "MCCL_SECRET_FILE" in capsys.readouterr().err
