"""Ranks as processes, on this host and in network namespaces."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mccl
from mccl.engine import library_path

MEMBER = Path(__file__).with_name("member.py")
SOURCE = str(Path(mccl.__file__).parents[1])

pytestmark = pytest.mark.timeout(60)


class Member:
    """A rank in its own process."""

    def __init__(
        self,
        file: Path,
        rank: int,
        size: int,
        prefix: tuple[str, ...] = (),
        engine: bool = False,
        **env: str,
    ) -> None:
        path = os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")])
        environ = {**os.environ, "PYTHONPATH": path, "MCCL_CONNECT_TIMEOUT_MS": "15000", **env}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, str(MEMBER), str(file), str(rank), str(size)]
            + ["engine"] * engine,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environ,
            text=True,
        )
        self.hello: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the rank ended without an answer"
        result: dict[str, Any] = json.loads(line)
        return result

    def tell(self, **command: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def ensure(self, send: list[int], recv: list[int]) -> dict[str, Any]:
        self.tell(do="ensure", send=send, recv=recv)
        return self.read()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


Spawn = Callable[..., Member]


@pytest.fixture
def spawn(tmp_path: Path) -> Iterator[Spawn]:
    made: list[Member] = []

    def build(rank: int, size: int, prefix: tuple[str, ...] = (), **env: Any) -> Member:
        env.setdefault("MASTER_ADDR", "127.0.0.1")
        member = Member(tmp_path / "store", rank, size, prefix, **env)
        made.append(member)
        return member

    yield build
    for member in made:
        member.end()


def test_three_processes_meet(spawn: Spawn) -> None:
    members = [spawn(r, 3) for r in range(3)]
    for member in members:
        assert member.read()["listening"][0][0] == "127.0.0.1"
    for rank, member in enumerate(members):
        member.tell(do="ensure", send=[(rank + 1) % 3], recv=[(rank - 1) % 3])
    for rank, member in enumerate(members):
        links = member.read()["links"]
        assert links[f"{(rank + 1) % 3}/0"] == [["127.0.0.1", "127.0.0.1"]]


def test_a_process_killed_before_the_first_connection_is_named(spawn: Spawn) -> None:
    a, b = spawn(0, 2), spawn(1, 2)
    a.read()
    b.read()
    b.process.send_signal(signal.SIGKILL)
    b.process.wait()
    kind, text, peer = a.ensure([1], [])["error"]
    assert (kind, peer) == ("PeerDiedError", 1)
    assert "ECONNREFUSED" in text
    assert f"pid {b.process.pid}" in text


def test_ports_follow_port_base_and_local_rank(spawn: Spawn) -> None:
    with socket.socket() as probe:  # a free pair of ports, most likely
        probe.bind(("127.0.0.1", 0))
        base = probe.getsockname()[1] - 1
    members = [
        spawn(r, 2, MCCL_PORT_BASE=str(base), LOCAL_RANK=str(r), MCCL_LISTEN_ADDR="127.0.0.1")
        for r in range(2)
    ]
    assert [m.read()["listening"] for m in members] == [
        [["127.0.0.1", base]],
        [["127.0.0.1", base + 1]],
    ]
    late = spawn(0, 2, MCCL_PORT_BASE=str(base), MCCL_LISTEN_ADDR="127.0.0.1").read()
    assert f"port {base} is in use" in late["error"][1]


needs_engine = pytest.mark.skipif(
    not library_path().exists(), reason="the native library is not built (make native)"
)


def wait_for(member: Member, peer: int) -> None:
    member.tell(**{"do": "receive", "from": peer})
    assert member.read() == {"waiting": True}


@needs_engine
def test_killing_a_rank_is_seen_by_name_on_every_other(spawn: Spawn) -> None:
    """Rank 1 waits for the victim, rank 0 only for rank 1: it hears through rank 1."""
    members = [spawn(r, 3, engine=True) for r in range(3)]
    for member in members:
        member.read()
    wait_for(members[0], 1)
    wait_for(members[1], 2)
    members[2].process.send_signal(signal.SIGKILL)
    for member in members[:2]:
        kind, text, peer = member.read()["error"]
        assert (kind, peer) == ("PeerDiedError", 2), text
        assert "rank 2" in text


@needs_engine
def test_a_stopped_rank_is_seen_within_the_peer_timeout(spawn: Spawn) -> None:
    members = [spawn(r, 2, engine=True, MCCL_PEER_TIMEOUT="1") for r in range(2)]
    for member in members:
        member.read()
    wait_for(members[0], 1)
    members[1].process.send_signal(signal.SIGSTOP)
    kind, text, peer = members[0].read()["error"]
    assert (kind, peer) == ("PeerSilentError", 1), text


# ---- network namespaces ---------------------------------------------------------------------


def _root() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("ip") is not None


needs_root = pytest.mark.skipif(not _root(), reason="needs root and iproute2 for namespaces")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, timeout=20, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Two namespaces joined by two cables: 10.77.0.0/24 (v0) and 10.77.1.0/24 (v1)."""
    names = [f"mcclt{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        for cable in range(2):
            _ip(
                *("link", "add", f"v{cable}", "netns", names[0]),
                *("type", "veth", "peer", "name", f"v{cable}", "netns", names[1]),
            )
            for side, name in enumerate(names):
                _ip("-n", name, "addr", "add", f"10.77.{cable}.{side + 1}/24", "dev", f"v{cable}")
                _ip(
                    "-n",
                    name,
                    "addr",
                    "add",
                    f"fd77:{cable}::{side + 1}/64",
                    "dev",
                    f"v{cable}",
                    "nodad",
                )
                _ip("-n", name, "link", "set", f"v{cable}", "up")
        yield names
    finally:
        for name in names:
            subprocess.run(
                ["ip", "netns", "del", name], timeout=20, capture_output=True, check=False
            )


def inside(name: str) -> tuple[str, ...]:
    return ("ip", "netns", "exec", name)


@pytest.mark.root
@needs_root
def test_two_interfaces_are_two_rails(spawn: Spawn, hosts: list[str]) -> None:
    """The names stand in different orders on the two hosts; subnets decide."""
    a = spawn(0, 2, inside(hosts[0]), MCCL_SOCKET_IFNAME="=v0,v1", MASTER_ADDR="10.77.0.1")
    b = spawn(1, 2, inside(hosts[1]), MCCL_SOCKET_IFNAME="=v1,v0", MASTER_ADDR="10.77.0.1")
    a.read()
    b.read()
    links = a.ensure([1], [])["links"]
    assert links["1/0"] == [["10.77.0.1", "10.77.0.2"], ["10.77.1.1", "10.77.1.2"]]
    assert links["1/4"] == [["10.77.0.1", "10.77.0.2"]]


@pytest.mark.root
@needs_root
def test_the_default_is_the_interface_towards_the_master(spawn: Spawn, hosts: list[str]) -> None:
    a, b = (spawn(r, 2, inside(hosts[r]), MASTER_ADDR="10.77.1.1") for r in range(2))
    for member in (a, b):
        assert all(
            ip.startswith(("10.77.1.", "fd77:1:", "fe80:")) for ip, _ in member.read()["listening"]
        )
    assert b.ensure([0], [])["links"]["0/0"] == [["10.77.1.2", "10.77.1.1"]]


@pytest.mark.root
@needs_root
def test_nothing_listens_on_other_interfaces(spawn: Spawn, hosts: list[str]) -> None:
    a = spawn(0, 2, inside(hosts[0]), MCCL_SOCKET_IFNAME="=v0", MASTER_ADDR="10.77.0.1")
    hello = a.read()
    bound = {ip for ip, _ in hello["listening"]}
    assert {"10.77.0.1", "fd77::1"} <= bound
    rows = subprocess.run(
        [*inside(hosts[0]), "cat", "/proc/net/tcp"],
        check=True,
        text=True,
        capture_output=True,
        timeout=20,
    ).stdout.splitlines()[1:]
    listening = {row.split()[1].split(":")[0] for row in rows if row.split()[3] == "0A"}
    assert listening == {"01004D0A"}  # 10.77.0.1, in the kernel's byte order
    assert "10.77.1.1" in hello["addresses"]
    assert not bound & {"10.77.1.1", "127.0.0.1", "::1"}


@pytest.mark.root
@needs_root
def test_ipv6_between_hosts(spawn: Spawn, hosts: list[str]) -> None:
    a, b = (spawn(r, 2, inside(hosts[r]), MCCL_LISTEN_ADDR=f"fd77::{r + 1}") for r in range(2))
    a.read()
    b.read()
    assert a.ensure([1], [])["links"]["1/0"] == [["fd77::1", "fd77::2"]]


@pytest.mark.root
@needs_root
def test_a_cut_cable_names_interface_and_addresses(spawn: Spawn, hosts: list[str]) -> None:
    a, b = (
        spawn(r, 2, inside(hosts[r]), MCCL_SOCKET_IFNAME="=v0", MCCL_CONNECT_TIMEOUT_MS="1000")
        for r in range(2)
    )
    a.read()
    b.read()
    _ip("-n", hosts[1], "link", "set", "v0", "down")
    kind, text, peer = a.ensure([1], [])["error"]
    assert (kind, peer) == ("ConnectError", 1)
    for part in ("10.77.0.1 (v0) to 10.77.0.2 port", "errno"):
        assert part in text


@pytest.mark.root
@needs_root
@needs_engine
def test_a_cable_pulled_while_waiting_is_noticed(spawn: Spawn, hosts: list[str]) -> None:
    a, b = (
        spawn(r, 2, inside(hosts[r]), engine=True, MCCL_SOCKET_IFNAME="=v0", MCCL_PEER_TIMEOUT="1")
        for r in range(2)
    )
    a.read()
    b.read()
    wait_for(a, 1)
    wait_for(b, 0)
    _ip("-n", hosts[1], "link", "set", "v0", "down")
    for member, other in ((a, 1), (b, 0)):
        kind, text, peer = member.read()["error"]
        assert kind in ("PeerSilentError", "PeerDiedError"), text
        assert peer == other
