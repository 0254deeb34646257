"""Ranks of one group as communicators of this process, linked by socket pairs."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from mccl.engine import Channel, NativeComm

TIMEOUT_US = 30_000_000
DATA = (
    (Channel.COLLECTIVE_TX, Channel.COLLECTIVE_RX),
    (Channel.P2P_TX, Channel.P2P_RX),
)


def _link(
    sender: NativeComm, receiver: NativeComm, out: Channel, into: Channel, rails: int = 1
) -> None:
    pairs = [socket.socketpair() for _ in range(rails)]
    sender.add_link(receiver.rank, out, [a.detach() for a, _ in pairs])
    receiver.add_link(sender.rank, into, [b.detach() for _, b in pairs])


def make_comm(rank: int, size: int, *, park_bytes: int = 1 << 20) -> NativeComm:
    """A communicator without links."""
    return NativeComm(
        rank,
        size,
        epoch=3,
        name="pytest",
        peer_timeout_us=TIMEOUT_US,
        park_bytes=park_bytes,
        spin_us=0,
        yield_spin=True,
        checksum=False,
        record_capacity=32,
    )


@contextmanager
def world(size: int) -> Iterator[list[NativeComm]]:
    """``size`` communicators with every link; destroyed at the end."""
    comms = [make_comm(rank, size) for rank in range(size)]
    try:
        for a in comms:
            for b in comms:
                if a is b:
                    continue
                for out, into in DATA:
                    _link(a, b, out, into)
                if a.rank < b.rank:
                    _link(a, b, Channel.CONTROL, Channel.CONTROL)
        yield comms
    finally:
        for comm in comms:
            comm.destroy()


def on_every_rank(size: int, body: Callable[[int], None]) -> None:
    """``body(rank)`` on a thread each; raises what the first rank that failed raised."""
    with ThreadPoolExecutor(size) as pool:
        for ended in [pool.submit(body, rank) for rank in range(size)]:
            ended.result()
