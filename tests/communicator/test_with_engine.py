"""The communicator with the native engine behind it: bytes cross, and failures reach every rank."""

from __future__ import annotations

import ctypes
import socket
import threading
from collections.abc import Callable

import pytest
import torch.distributed as dist

from mccl import errors
from mccl.communicator import Communicator
from mccl.communicator.listener import GroupKey
from mccl.config import Config
from mccl.engine import (
    Channel,
    DType,
    EngineBroken,
    NativeComm,
    Operation,
    Status,
    library_path,
)

pytestmark = [
    pytest.mark.skipif(
        not library_path().exists(), reason="the native library is not built (make native)"
    ),
    pytest.mark.timeout(60),
]

Make = Callable[..., Communicator]
Settings = Callable[..., Config]
NONE: frozenset[int] = frozenset()


def transfer(
    comm: Communicator, *, send: bool, peer: int, data: ctypes.Array[ctypes.c_char]
) -> Operation:
    comm.ensure(frozenset({peer}) if send else NONE, NONE if send else frozenset({peer}), p2p=True)
    operation = comm.native.p2p(
        send=send,
        peer=peer,
        pointer=ctypes.addressof(data),
        nbytes=len(data),
        tag=7,
        dtype=DType.U8,
        sync=False,
        timeout_us=20_000_000,
    )
    assert operation is not None
    return operation


@pytest.mark.parametrize("nsocks", [1, 3])
def test_bytes_cross_between_members(make: Make, loopback: Settings, nsocks: int) -> None:
    store = dist.HashStore()
    a, b = (make(store, r, 2, native=NativeComm, config=loopback(nsocks=nsocks)) for r in range(2))
    size = 3_000_001
    out = ctypes.create_string_buffer(bytes(i % 251 for i in range(size)), size)
    into = ctypes.create_string_buffer(size)
    receiving = transfer(b, send=False, peer=0, data=into)
    sending = transfer(a, send=True, peer=1, data=out)
    assert sending.wait() is Status.OK
    assert receiving.wait() is Status.OK
    assert into.raw == out.raw


def wait_broken(comm: Communicator, waiting: Operation) -> errors.MCCLError:
    with pytest.raises(EngineBroken):
        waiting.wait(20_000_000)
    return comm.error()


def test_abort_reaches_a_waiting_peer(make: Make) -> None:
    store = dist.HashStore()
    a, b = (make(store, r, 2, native=NativeComm) for r in range(2))
    waiting = transfer(b, send=False, peer=0, data=ctypes.create_string_buffer(16))
    a.ensure(NONE, frozenset({1}))
    threading.Thread(target=a.abort, args=("disk full",)).start()
    error = wait_broken(b, waiting)
    assert error.peer == 0
    assert "disk full" in str(error)
    with pytest.raises(errors.MCCLError, match="disk full"):
        b.ensure(frozenset({0}), NONE)


def test_leaving_reaches_a_waiting_peer(make: Make) -> None:
    store = dist.HashStore()
    a, b = (make(store, r, 2, native=NativeComm) for r in range(2))
    waiting = transfer(b, send=False, peer=0, data=ctypes.create_string_buffer(16))
    a.close()
    error = wait_broken(b, waiting)
    assert isinstance(error, errors.PeerLeftError)
    assert error.peer == 0
    assert error.host is not None


def test_a_link_that_arrives_while_leaving_hears_the_goodbye(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = dist.HashStore()
    a, b = (make(store, r, 2, native=NativeComm) for r in range(2))
    a.ensure(frozenset({1}), NONE)
    assert a._listener is not None
    forget = a._listener.deregister
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()

    def late(key: GroupKey) -> None:
        a._arrived(1, Channel.CONTROL, [theirs])
        forget(key)

    monkeypatch.setattr(a._listener, "deregister", late)
    with ours:
        a.close()
        ours.settimeout(10)
        assert ours.recv(4096), "closed without a goodbye"
    b.close()


def test_a_failed_connection_reaches_a_third_rank(make: Make, loopback: Settings) -> None:
    """Rank 2 never comes; rank 0 finds out, rank 1 waits for rank 0."""
    store = dist.HashStore()
    a = make(store, 0, 3, native=NativeComm, config=loopback(connect_timeout=0.3))
    b = make(store, 1, 3, native=NativeComm)
    waiting = transfer(b, send=False, peer=0, data=ctypes.create_string_buffer(16))
    with pytest.raises(errors.ConnectError, match="rank 2 did not join"):
        a.ensure(frozenset({2}), NONE)
    error = wait_broken(b, waiting)
    assert "rank 2 did not join" in str(error)
    assert error.peer == 2


def test_the_engine_holds_the_links(make: Make) -> None:
    store = dist.HashStore()
    a, b = (make(store, r, 2, native=NativeComm) for r in range(2))
    a.ensure(frozenset({1}), NONE)
    assert a.native.has_link(1, Channel.COLLECTIVE_TX)
    assert a.native.has_link(1, Channel.CONTROL)
    b.close()
    a.close()
