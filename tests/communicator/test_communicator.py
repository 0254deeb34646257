"""Members meet, open links on first need and fail together; several ranks in one process."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from mccl import errors
from mccl.communicator import Communicator, process
from mccl.communicator import handshake as hs
from mccl.communicator.interfaces import Address
from mccl.config import Config
from mccl.engine import Channel, Failure, NativeError

Make = Callable[..., Communicator]
Settings = Callable[..., Config]
NONE: frozenset[int] = frozenset()


def one(*ranks: int) -> frozenset[int]:
    return frozenset(ranks)


def native(comm: Communicator) -> Any:
    return comm.native


def carries(sender: Communicator, receiver: Communicator, p2p: bool = False) -> bool:
    """Sends a byte over every rail of the link between the two."""
    tx, rx = Channel.COLLECTIVE_TX, Channel.COLLECTIVE_RX
    if p2p:
        tx, rx = Channel.P2P_TX, Channel.P2P_RX
    out = native(sender).wait_link(receiver.rank, tx)
    into = native(receiver).wait_link(sender.rank, rx)
    assert len(out) == len(into)
    for rail, (a, b) in enumerate(zip(out, into, strict=True)):
        os.write(a, bytes([rail]))
        os.set_blocking(b, True)
        assert os.read(b, 10) == bytes([rail])
    return True


@pytest.fixture(params=["hash", "tcp"])
def store(request: pytest.FixtureRequest) -> dist.Store:
    base: dist.Store
    if request.param == "hash":
        base = dist.HashStore()
    else:
        base = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=20))
    return dist.PrefixStore("default_pg", base)


def test_a_ring_opens_one_data_link_a_neighbour(make: Make, store: dist.Store) -> None:
    comms = [make(store, r, 3) for r in range(3)]
    for comm in comms:
        comm.ensure(one((comm.rank + 1) % 3), one((comm.rank - 1) % 3))
    for comm in comms:
        assert carries(comm, comms[(comm.rank + 1) % 3])
    for comm in comms:
        kinds = {key for key in native(comm).links if key[1] != Channel.CONTROL}
        assert kinds == {
            ((comm.rank + 1) % 3, Channel.COLLECTIVE_TX),
            ((comm.rank - 1) % 3, Channel.COLLECTIVE_RX),
        }
        for peer in {0, 1, 2} - {comm.rank}:
            native(comm).wait_link(peer, Channel.CONTROL)


def test_nothing_is_opened_before_it_is_needed(make: Make, store: dist.Store) -> None:
    a, b = make(store, 0, 2), make(store, 1, 2)
    assert not native(a).links
    a.ensure(NONE, one(1))
    native(b).wait_link(0, Channel.CONTROL)
    assert set(native(a).links) == {(1, Channel.CONTROL)}


def test_collective_and_point_to_point_links_are_apart(make: Make, store: dist.Store) -> None:
    a, b = make(store, 0, 2), make(store, 1, 2)
    a.ensure(one(1), NONE)
    a.ensure(one(1), NONE, p2p=True)
    assert carries(a, b)
    assert carries(a, b, p2p=True)


def test_ensure_is_idempotent(
    make: Make, store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = make(store, 0, 2), make(store, 1, 2)
    a.ensure(one(1), one(1))
    monkeypatch.setattr(a, "_ensure_peer", None)  # would raise when called
    a.ensure(one(1), one(1))


def test_several_sockets_make_one_link_in_rail_order(
    make: Make, store: dist.Store, loopback: Settings
) -> None:
    a, b = (make(store, r, 2, config=loopback(nsocks=4)) for r in range(2))
    a.ensure(one(1), NONE)
    assert carries(a, b)
    assert len(native(a).links[1, Channel.COLLECTIVE_TX]) == 4


def test_both_sides_at_once_from_several_threads(make: Make, store: dist.Store) -> None:
    comms = [make(store, r, 4) for r in range(4)]
    everyone = {c.rank: one(*({0, 1, 2, 3} - {c.rank})) for c in comms}
    begin = threading.Barrier(16)

    def call(comm: Communicator) -> None:
        begin.wait(10)
        comm.ensure(everyone[comm.rank], everyone[comm.rank])

    with ThreadPoolExecutor(16) as pool:
        for result in [pool.submit(call, c) for c in comms for _ in range(4)]:
            result.result(30)
    for a in comms:
        for b in comms:
            assert a is b or carries(a, b)


def test_two_overlapping_groups(make: Make, store: dist.Store) -> None:
    first = [make(store, r, 3, "g") for r in range(3)]
    second = [make(store, r, 2, "h", global_ranks=[2, 1]) for r in range(2)]
    first[0].ensure(one(1), NONE)
    second[0].ensure(one(1), NONE)
    assert carries(first[0], first[1])
    assert carries(second[0], second[1])


def test_64_groups_share_one_listener(make: Make, store: dist.Store) -> None:
    groups = [[make(store, r, 2, f"g{n}") for r in range(2)] for n in range(64)]
    for a, b in groups:
        a.ensure(one(1), one(1))
        assert carries(a, b)
    listeners = {id(c._listener) for pair in groups for c in pair}
    assert len(listeners) == 1


def test_destroy_and_create_again(make: Make, store: dist.Store) -> None:
    for epoch in range(1, 4):
        pair = [make(store, r, 2) for r in range(2)]
        assert [c.epoch for c in pair] == [epoch, epoch]
        pair[0].ensure(one(1), NONE)
        assert carries(*pair)
        for comm in pair:
            comm.close()
    assert process._process_listener is None


def test_the_last_to_leave_deletes_the_keys(make: Make) -> None:
    base = dist.HashStore()
    pair = [make(base, r, 2) for r in range(2)]
    pair[0].ensure(one(1), NONE)
    for comm in pair:
        comm.close()
    assert sorted(base.list_keys()) == ["mccl/g/count/0", "mccl/g/count/1"]


def test_a_group_of_one_opens_nothing(make: Make) -> None:
    class NoStore(dist.Store):
        """Any call would be an error."""

    comm = make(NoStore(), 0, 1)
    comm.ensure(NONE, NONE)
    assert process._process_listener is None


def test_a_late_member_is_waited_for(make: Make, store: dist.Store) -> None:
    a = make(store, 0, 2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(a.ensure, one(1), NONE)
        b = make(store, 1, 2)
        waiting.result(10)
    assert carries(a, b)


def test_a_member_that_never_comes_is_named(
    make: Make, store: dist.Store, loopback: Settings
) -> None:
    a = make(store, 0, 2, config=loopback(connect_timeout=0.2), global_ranks=[0, 7])
    with pytest.raises(errors.ConnectError, match=r"rank 7 did not join the group") as info:
        a.ensure(one(1), NONE)
    assert info.value.peer == 7
    assert native(a).first.culprit == 1
    with pytest.raises(errors.ConnectError):  # and every later call says the same
        a.ensure(one(1), NONE)


def test_a_member_that_left_is_named(make: Make, store: dist.Store) -> None:
    a, b = make(store, 0, 2), make(store, 1, 2)
    b.close()
    with pytest.raises(errors.PeerLeftError, match="rank 1 has destroyed this group") as info:
        a.ensure(NONE, one(1))
    assert info.value.peer == 1
    assert native(a).first.failure == Failure.PEER_LEFT


def test_a_member_that_leaves_between_record_and_connection(make: Make, store: dist.Store) -> None:
    a, b = make(store, 0, 2), make(store, 1, 2)
    a._fetch(1)
    b.close()
    with pytest.raises(errors.PeerLeftError, match="destroyed this group"):
        a.ensure(one(1), NONE)


def test_another_secret_is_an_error_with_advice(
    make: Make, store: dist.Store, loopback: Settings
) -> None:
    a = make(store, 0, 2, config=loopback(secret=b"one secret"))
    make(store, 1, 2, config=loopback(secret=b"another secret"))
    with pytest.raises(errors.ConnectError, match="MCCL_SECRET"):
        a.ensure(one(1), NONE)


def test_a_secret_from_a_file(
    make: Make, store: dist.Store, loopback: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text("one secret\n")
    a = make(store, 0, 2, config=loopback(secret=b"one secret"))
    b = make(store, 1, 2, config=loopback(secret_file=file))
    a.ensure(one(1), NONE)
    assert carries(a, b)


def test_settings_that_differ_break_the_group(
    make: Make, store: dist.Store, loopback: Settings
) -> None:
    a = make(store, 0, 2, config=loopback(checksum=True))
    make(store, 1, 2)
    with pytest.raises(errors.MismatchError, match=r"MCCL_CHECKSUM differs: True on rank 0"):
        a.ensure(one(1), NONE)
    assert native(a).first.failure == Failure.MISMATCH


def test_a_rank_claimed_twice_is_refused(make: Make, store: dist.Store) -> None:
    make(store, 0, 2)
    a = make(store, 1, 2)
    a.ensure(one(0), NONE)
    with a._lock:  # the impostor: same secret, same rank
        a._sending.clear()
        a._ensured.clear()
    with pytest.raises(errors.ConnectError, match="two processes claim the same rank"):
        a.ensure(one(0), NONE)


def test_a_relay_under_its_own_address_is_refused(make: Make, store: dist.Store) -> None:
    """Somebody announced his own address for rank 1 and passes every byte on, both ways."""
    a, b = make(store, 0, 2), make(store, 1, 2)
    record = a._fetch(1)
    with socket.create_server(("127.0.0.1", 0)) as relay, ThreadPoolExecutor(1) as pool:
        relay.settimeout(10)
        passing = pool.submit(_pass_on, relay, record.rails[0].addresses[0][1])
        rail = replace(
            record.rails[0], addresses=((Address("127.0.0.1", 8), relay.getsockname()[1]),)
        )
        a._records[1] = replace(record, rails=(rail,))
        with pytest.raises(errors.ConnectError, match="never announced the address"):
            a.ensure(one(1), NONE)
        passing.result(10)
    assert not native(b).links


def _pass_on(relay: socket.socket, port: int) -> None:
    """HELLO there, challenge back, proof there, verdict back."""
    ours, _ = relay.accept()
    with ours, socket.create_connection(("127.0.0.1", port)) as theirs:
        for source, sink, size in (
            (ours, theirs, hs.HELLO_SIZE),
            (theirs, ours, hs.CHALLENGE_SIZE),
            (ours, theirs, hs.PROOF_SIZE),
            (theirs, ours, hs.VERDICT_SIZE),
        ):
            source.settimeout(10)
            sink.sendall(source.recv(size, socket.MSG_WAITALL))


def test_failure_reaches_ranks_without_a_connection(make: Make, store: dist.Store) -> None:
    a, b = make(store, 0, 3), make(store, 1, 3)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(b.ensure, one(2), NONE)  # rank 2 never comes
        a.abort("gave up")
        with pytest.raises(errors.RemoteError, match="rank 0 broke the group: gave up") as info:
            waiting.result(10)
    assert info.value.peer == 0
    assert native(b).first.culprit == 0


def test_abort_ends_a_wait_on_this_rank(make: Make, store: dist.Store) -> None:
    a = make(store, 0, 2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(a.ensure, one(1), NONE)
        a.abort("stop")
        with pytest.raises((errors.AbortedError, errors.RemoteError), match="stop"):
            waiting.result(10)


def test_errors_name_global_rank_host_and_group(make: Make, store: dist.Store) -> None:
    a, b = (make(store, r, 2, "dp", global_ranks=[4, 6]) for r in range(2))
    a.ensure(one(1), NONE)
    label = f"{socket.gethostname()} (127.0.0.1) pid {os.getpid()}"
    assert native(a).labels[1] == f"global rank 6, {label}"
    b.abort("x")
    native(a).fail(native(b).first)
    error = a.error()
    assert isinstance(error, errors.AbortedError)
    assert (error.rank, error.peer) == (4, 6)
    assert "[rank 4] group 'dp'" in str(error)
    assert error.host == label


def test_after_close_every_call_says_so(make: Make, store: dist.Store) -> None:
    a, _ = make(store, 0, 2), make(store, 1, 2)
    a.close()
    a.close()
    with pytest.raises(errors.AbortedError, match="destroyed"):
        a.ensure(one(1), NONE)


def test_close_releases_half_built_links(
    make: Make, store: dist.Store, monkeypatch: pytest.MonkeyPatch, loopback: Settings
) -> None:
    """The sender is interrupted after the first of two rails."""
    a, b = (make(store, r, 2, config=loopback(nsocks=2)) for r in range(2))
    a.ensure(NONE, one(1))
    opened: list[socket.socket] = []
    original = a._connector.open

    def once(*args: Any) -> socket.socket:
        if opened:
            raise errors.ConnectError("interrupted", phase="connect")
        opened.append(original(*args))
        return opened[0]

    monkeypatch.setattr(a._connector, "open", once)
    with pytest.raises(errors.ConnectError, match="interrupted"):
        a.ensure(one(1), NONE)
    assert opened[0].fileno() == -1
    b.close()
    assert b._incoming is not None
    assert not b._incoming._partial


def test_bad_arguments_are_usage_errors(make: Make, store: dist.Store) -> None:
    with pytest.raises(errors.UsageError, match="rank 2"):
        make(store, 2, 2)
    with pytest.raises(errors.UsageError, match="global ranks"):
        make(store, 0, 2, global_ranks=[1])
    a = make(store, 0, 2)
    with pytest.raises(errors.UsageError, match="rank 5 is not in group"):
        a.ensure(one(5), NONE)
    assert native(a).first is None  # a wrong call breaks nothing


def test_a_store_that_is_gone_is_named(make: Make) -> None:
    host = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=5))
    client = dist.TCPStore("127.0.0.1", host.port, 1, False, timedelta(seconds=5))
    a = make(client, 0, 2)
    del host
    for _ in range(2):
        with pytest.raises(errors.StoreError, match="store through which the ranks meet"):
            a.ensure(one(1), NONE)


def test_a_forked_child_gets_a_clear_error(make: Make) -> None:
    a = make(dist.HashStore(), 0, 2)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            a.ensure(one(1), NONE)
        except errors.UsageError as error:
            os.write(writing, str(error).encode()[:400])
        a.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"forked child" in os.read(reading, 400)
    os.close(reading)
    os.close(writing)


def test_impossible_interface_leaves_nothing_behind(make: Make, store: dist.Store) -> None:
    with pytest.raises(errors.UsageError, match="nope0"):
        make(store, 0, 2, config=Config.from_env({"MCCL_SOCKET_IFNAME": "nope0"}))
    assert process._process_listener is None


def test_only_control_links_carry_a_user_timeout(make: Make, store: dist.Store) -> None:
    """A peer that computes shuts its window; TCP_USER_TIMEOUT would end the link for that."""
    if not hasattr(socket, "TCP_USER_TIMEOUT"):
        pytest.skip("this system has no TCP_USER_TIMEOUT")
    a, b = make(store, 0, 2), make(store, 1, 2)
    a.ensure(one(1), NONE)

    def user_timeout(comm: Communicator, peer: int, channel: Channel) -> int:
        fd = native(comm).wait_link(peer, channel)[0]
        assert not os.get_blocking(fd)
        with socket.socket(fileno=os.dup(fd)) as sock:
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    assert user_timeout(a, 1, Channel.COLLECTIVE_TX) == 0
    assert user_timeout(b, 0, Channel.COLLECTIVE_RX) == 0
    assert user_timeout(a, 1, Channel.CONTROL) == 10_000
    assert user_timeout(b, 0, Channel.CONTROL) == 10_000


def test_buffer_sizes_reach_both_ends(make: Make, store: dist.Store, loopback: Settings) -> None:
    a, b = (make(store, r, 2, config=loopback(sock_bufsize=65536)) for r in range(2))
    a.ensure(one(1), NONE)
    for comm, channel, option in (
        (a, Channel.COLLECTIVE_TX, socket.SO_SNDBUF),
        (b, Channel.COLLECTIVE_RX, socket.SO_RCVBUF),
    ):
        fd = native(comm).wait_link(1 - comm.rank, channel)[0]
        with socket.socket(fileno=os.dup(fd)) as sock:
            # Linux doubles what was asked for (socket(7)).
            assert sock.getsockopt(socket.SOL_SOCKET, option) in (65536, 131072)


def test_closing_does_not_hang_on_a_store_that_does_not_answer(
    make: Make, store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = make(store, 0, 2)
    rendezvous = a._rendezvous
    assert rendezvous is not None
    release = threading.Event()
    asked = threading.Event()

    class Stuck:
        def set(self, *_: object) -> None:
            asked.set()
            release.wait(30)
            raise RuntimeError("gone")

    monkeypatch.setattr("mccl.communicator.rendezvous._BEST_EFFORT_SECONDS", 0.05)
    monkeypatch.setattr(rendezvous, "_store", Stuck())
    a.close()
    assert asked.is_set()
    assert not release.is_set()
    release.set()


def test_what_the_engine_found_is_left_as_word_for_others(make: Make, store: dist.Store) -> None:
    a, b = make(store, 0, 3), make(store, 1, 3)
    lost = NativeError(Failure.PEER_DIED, 2, 0, 0, 5, 0, "receive", "connection reset")
    native(a).fail(lost)
    assert isinstance(a.error(), errors.PeerDiedError)
    with pytest.raises(errors.RemoteError, match="connection reset") as info:
        b.ensure(one(2), NONE)
    assert info.value.peer == 2


LOST = NativeError(Failure.PEER_DIED, 2, 2, 0, 5, 0, "receive", "connection reset")
"""What rank 2 found: rank 2 is to blame, and no other."""


@pytest.mark.parametrize("known", [True, False])
def test_who_left_a_broken_group_is_not_blamed(make: Make, store: dist.Store, known: bool) -> None:
    a, b = make(store, 0, 3), make(store, 1, 3)
    if known:
        a._fetch(1)
    native(b).fail(LOST)
    b.close()
    with pytest.raises(
        errors.RemoteError, match="rank 2 broke the group: connection reset"
    ) as info:
        a.ensure(one(1), NONE)
    assert info.value.peer == 2
    assert native(a).first.culprit == 2


def admits(comm: Communicator, admit: Callable[[hs.Claims], hs.Verdict]) -> None:
    """Let this answer whoever connects to ``comm``."""
    listener = comm._listener
    assert listener is not None
    registered = listener._registrations
    registered[comm._key] = replace(registered[comm._key], admit=admit)


def test_who_refuses_because_the_group_broke_is_not_blamed(make: Make, store: dist.Store) -> None:
    a, b, c = (make(store, rank, 3) for rank in range(3))

    def break_and_refuse(_: hs.Claims) -> hs.Verdict:
        native(c).fail(LOST)
        c.close()
        return hs.Verdict.CLOSED

    admits(b, break_and_refuse)
    with pytest.raises(errors.RemoteError, match="connection reset") as info:
        a.ensure(one(1), NONE)
    assert info.value.peer == 2


def test_the_first_failure_is_told_not_what_came_of_it(make: Make, store: dist.Store) -> None:
    a, b = make(store, 0, 3), make(store, 1, 3)

    def break_and_refuse(_: hs.Claims) -> hs.Verdict:
        native(a).fail(LOST)
        return hs.Verdict.CLOSED

    admits(b, break_and_refuse)
    with pytest.raises(errors.PeerDiedError, match="connection reset") as info:
        a.ensure(one(1), NONE)
    assert info.value.peer == 2


def test_a_store_that_did_not_answer_is_not_waited_for_again(
    make: Make, store: dist.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = make(store, 0, 3)
    rendezvous = a._rendezvous
    assert rendezvous is not None
    release, calls = threading.Event(), []

    class Stuck:
        def compare_set(self, *_: object) -> None:
            calls.append("word")
            release.wait(30)

        def set(self, *_: object) -> None:
            calls.append("left")

    monkeypatch.setattr("mccl.communicator.rendezvous._BEST_EFFORT_SECONDS", 0.05)
    monkeypatch.setattr(rendezvous, "_store", Stuck())
    native(a).fail(LOST)
    a.close()
    release.set()
    assert calls == ["word"]
