"""The listener among strangers: none gets in, members always do, nothing grows."""

from __future__ import annotations

import contextlib
import errno
import gc
import logging
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mccl.communicator import handshake as hs
from mccl.communicator import process
from mccl.communicator.connector import Connector, Target
from mccl.communicator.handshake import Claims, Initiator, Verdict
from mccl.communicator.interfaces import Address
from mccl.communicator.listener import Limits, Listener, Registration
from mccl.communicator.routes import Route
from mccl.errors import ConnectError, InternalError, MCCLError, PeerLeftError

LOOP = Address("127.0.0.1", 8)
KEY = hs.derive_key(b"correct horse", "token")
JOB, GROUP = hs.short_hash("token"), hs.short_hash("g")
CLAIMS = Claims(JOB, GROUP, 1, 1, 0, 0, 0, 1, ("0.0.0.0", 0), ("0.0.0.0", 0))


class Group:
    """A registered group that takes everyone in, once."""

    def __init__(self, key: bytes = KEY, group: bytes = GROUP, job: bytes = JOB) -> None:
        self.changed = threading.Condition()
        self.taken: list[tuple[Claims, socket.socket]] = []
        self.seen: set[tuple[int, int, int]] = set()
        self.registration = Registration((group, 1, 0), job, key, self._admit, self._take)

    def _admit(self, claims: Claims) -> Verdict:
        claim = (claims.source, claims.channel, claims.rail)
        if claim in self.seen:
            return Verdict.DUPLICATE
        self.seen.add(claim)
        return Verdict.ADMITTED

    def _take(self, claims: Claims, sock: socket.socket) -> None:
        with self.changed:
            self.taken.append((claims, sock))
            self.changed.notify_all()

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.taken) >= count, 10)

    def close(self) -> None:
        for _, sock in self.taken:
            sock.close()


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    made.close()


Start = Callable[..., tuple[Listener, int]]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Listener] = []

    def build(limits: Limits | None = None, address: Address = LOOP) -> tuple[Listener, int]:
        listener = Listener(limits=limits)
        made.append(listener)
        return listener, listener.bind([address], "lo")[0][1]

    yield build
    for listener in made:
        listener.close()


def dial(
    port: int, *, key: bytes = KEY, claims: Claims = CLAIMS, patience: float = 5.0
) -> socket.socket:
    connector = Connector(connect_timeout=patience, bufsize=None, interrupted=lambda: None)
    route = Route("lo", LOOP, LOOP, port, True)
    return connector.open([route], Target(0, "here"), key, claims, lambda: None)


def knock(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def hung_up(sock: socket.socket) -> bool:
    """Waits for the end of the connection."""
    try:
        while sock.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def test_a_member_is_let_in_and_bytes_behind_the_handshake_are_left_alone(
    start: Start, group: Group
) -> None:
    listener, port = start()
    listener.register(group.registration)
    with dial(port) as sock:
        sock.send(b"first bytes of the engine")
        group.wait(1)
        claims, other = group.taken[0]
        other.settimeout(10)
        assert other.recv(100) == b"first bytes of the engine"
    assert claims.destination_address == ("127.0.0.1", port)
    assert claims.source_address[0] == "127.0.0.1"


def test_ipv6_loopback(start: Start, group: Group) -> None:
    six = Address("::1", 128)
    try:
        listener, port = start(address=six)
    except MCCLError:
        pytest.skip("this host has no IPv6 loopback")
    listener.register(group.registration)
    connector = Connector(connect_timeout=5, bufsize=None, interrupted=lambda: None)
    route = Route("lo", six, six, port, True)
    with connector.open([route], Target(0, "here"), KEY, CLAIMS, lambda: None):
        group.wait(1)
    assert group.taken[0][0].destination_address == ("::1", port)


def test_a_wrong_secret_is_refused_on_both_sides(start: Start, group: Group) -> None:
    listener, port = start()
    listener.register(group.registration)
    with pytest.raises(ConnectError, match=r"does not hold this job's secret.*MCCL_SECRET"):
        dial(port, key=hs.derive_key(b"battery staple", "token"))
    with dial(port):  # and a member still gets in
        group.wait(1)
    assert len(group.taken) == 1


def test_a_stranger_that_answers_the_challenge_wrongly(start: Start, group: Group) -> None:
    listener, port = start()
    listener.register(group.registration)
    with knock(port) as sock:
        sock.sendall(Initiator(KEY, CLAIMS).hello())
        assert len(sock.recv(hs.CHALLENGE_SIZE, socket.MSG_WAITALL)) == hs.CHALLENGE_SIZE
        sock.sendall(bytes(hs.PROOF_SIZE))
        assert sock.recv(1) == b""
    assert not group.seen


def test_a_replayed_handshake_is_refused(start: Start, group: Group) -> None:
    listener, port = start()
    listener.register(group.registration)
    initiator = Initiator(KEY, CLAIMS)
    frames: list[bytes] = []
    with knock(port) as sock:
        sock.sendall(initiator.hello())
        proof = initiator.on_challenge(sock.recv(hs.CHALLENGE_SIZE, socket.MSG_WAITALL))
        frames = [initiator.hello(), proof]
        sock.sendall(proof)
        initiator.on_verdict(sock.recv(hs.VERDICT_SIZE, socket.MSG_WAITALL))
    group.wait(1)
    group.seen.clear()
    with knock(port) as sock:
        sock.sendall(frames[0])
        sock.recv(hs.CHALLENGE_SIZE, socket.MSG_WAITALL)
        sock.sendall(frames[1])
        assert hung_up(sock)
    assert len(group.taken) == 1
    assert not group.seen


def test_a_rank_claimed_twice_is_refused_with_the_reason(start: Start, group: Group) -> None:
    listener, port = start()
    listener.register(group.registration)
    with (
        dial(port),
        pytest.raises(ConnectError, match="two processes claim the same rank"),
    ):
        dial(port)


def test_another_job_is_not_challenged(start: Start, group: Group) -> None:
    listener, port = start()
    listener.register(group.registration)
    with knock(port) as sock:
        sock.sendall(Initiator(KEY, replace(CLAIMS, job=hs.short_hash("other"))).hello())
        assert sock.recv(1) == b""


def test_random_bytes_are_dropped_and_logged_a_few_times(
    start: Start, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    listener, port = start()
    listener.register(group.registration)
    rng = random.Random(11)
    with caplog.at_level(logging.WARNING, "mccl.communicator"):
        for _ in range(300):
            with knock(port) as sock, contextlib.suppress(ConnectionError):
                sock.sendall(rng.randbytes(rng.randrange(hs.HELLO_SIZE, 4 * hs.HELLO_SIZE)))
                assert hung_up(sock)
        with dial(port):
            group.wait(1)
    assert 1 <= len(caplog.records) <= 12
    assert "does not speak the protocol" in caplog.text
    assert len(group.taken) == 1


def test_half_open_connections_do_not_keep_members_out(start: Start, group: Group) -> None:
    listener, port = start(Limits(half_open=16, handshake_seconds=60))
    listener.register(group.registration)
    flood = [knock(port) for _ in range(100)]
    try:
        with dial(port):
            group.wait(1)
        assert hung_up(flood[0])  # the oldest was dropped for one of the later ones
        assert len(listener._connections) <= 16
    finally:
        for sock in flood:
            sock.close()


def test_a_slow_stranger_meets_the_deadline(start: Start, group: Group) -> None:
    listener, port = start(Limits(handshake_seconds=0.2))
    listener.register(group.registration)
    with knock(port) as sock:
        sock.sendall(Initiator(KEY, CLAIMS).hello()[:50])
        assert hung_up(sock)


def test_an_early_member_is_held_until_its_group_exists(start: Start, group: Group) -> None:
    listener, port = start()
    held = threading.Event()
    greeted = listener._greeted

    def watch(connection: object) -> None:
        greeted(connection)  # type: ignore[arg-type]
        held.set()

    listener._greeted = watch  # type: ignore[method-assign,assignment]
    socks: list[socket.socket] = []
    caller = threading.Thread(target=lambda: socks.append(dial(port)))
    caller.start()
    assert held.wait(10)
    listener.register(group.registration)
    caller.join(10)
    group.wait(1)
    socks[0].close()


def test_a_held_connection_has_a_deadline_and_a_bound(start: Start) -> None:
    _, port = start(Limits(held=4, hold_seconds=60))
    flood = []
    for _ in range(6):
        sock = knock(port)
        sock.sendall(Initiator(KEY, CLAIMS).hello())
        flood.append(sock)
    assert hung_up(flood[0])
    for sock in flood:
        sock.close()
    _, port = start(Limits(hold_seconds=0.2))
    with knock(port) as sock:
        sock.sendall(Initiator(KEY, CLAIMS).hello())
        assert hung_up(sock)


def test_a_held_connection_that_talks_or_leaves_is_dropped(start: Start) -> None:
    _, port = start()
    with knock(port) as sock:
        sock.sendall(Initiator(KEY, CLAIMS).hello() + b"x")
        assert hung_up(sock)


def test_a_group_that_was_closed_is_refused(start: Start, group: Group) -> None:
    listener, port = start()
    listener.register(group.registration)
    listener.deregister(group.registration.key)
    with pytest.raises(PeerLeftError):
        dial(port, patience=0.3)


def test_two_groups_with_two_secrets_share_a_listener(start: Start, group: Group) -> None:
    listener, port = start()
    other_key, other_hash = hs.derive_key(b"battery staple", "t2"), hs.short_hash("h")
    other = Group(other_key, other_hash, hs.short_hash("t2"))
    listener.register(group.registration)
    listener.register(other.registration)
    theirs = replace(CLAIMS, group=other_hash, job=hs.short_hash("t2"))
    with dial(port), dial(port, key=other_key, claims=theirs):
        group.wait(1)
        other.wait(1)
    with pytest.raises(ConnectError):
        dial(port, claims=theirs)
    other.close()


def test_a_port_in_use_is_named_with_advice() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        listener = Listener(port=port)
        try:
            with pytest.raises(ConnectError, match=f"port {port} is in use.*MCCL_PORT_BASE"):
                listener.bind([LOOP], "lo")
        finally:
            listener.close()


def test_a_refused_connection_names_both_ends_and_errno() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(MCCLError, match=f"127.0.0.1 .lo. to 127.0.0.1 port {port}: ECONNREFUSED"):
        dial(port, patience=0.2)


def test_local_network_privacy_of_macos_is_explained() -> None:
    connector = Connector(
        connect_timeout=1, bufsize=None, interrupted=lambda: None, platform="darwin"
    )
    route = Route("en0", LOOP, LOOP, 1, True)
    for code in (errno.EHOSTUNREACH, errno.EACCES, 65):
        assert "Local Network" in connector._hint(route, OSError(code, ""))


def descriptors() -> set[str]:
    folder = Path("/proc/self/fd")
    return {item.name for item in folder.iterdir()} if folder.is_dir() else set()


def test_close_leaves_no_thread_and_no_descriptor() -> None:
    gc.collect()
    before = descriptors()
    listener = Listener()
    port = listener.bind([LOOP], "lo")[0][1]
    stranger = knock(port)
    listener.close()
    stranger.close()
    assert not listener._thread.is_alive()
    assert descriptors() == before


def test_a_forked_child_does_not_keep_the_port_open() -> None:
    listener = process.acquire(port=0, bufsize=None)
    port = listener.bind([LOOP], "lo")[0][1]
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, b"x")
        signal.pause()
        os._exit(0)
    try:
        assert os.read(reading, 1) == b"x"
        process.release(listener)
        with pytest.raises(ConnectionRefusedError):
            knock(port)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


def test_running_out_of_descriptors_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("mccl.communicator.connector.socket.socket", refuse)
    with pytest.raises(InternalError, match=r"EMFILE.*ulimit -n"):
        dial(1)


def test_who_was_admitted_is_handed_over_before_the_group_is_forgotten(
    start: Start, group: Group
) -> None:
    listener, port = start()
    outlived: list[bool] = []

    def take(claims: Claims, sock: socket.socket) -> None:
        leaving = threading.Thread(target=listener.deregister, args=(group.registration.key,))
        leaving.start()
        leaving.join(0.2)  # without the guard it ends at once
        outlived.append(leaving.is_alive())
        group.registration.take(claims, sock)

    listener.register(replace(group.registration, take=take))
    with dial(port):
        group.wait(1)
    assert outlived == [True]
