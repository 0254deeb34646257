"""Who may connect to one member of a group, and how sockets become links.

Called on the listener's thread with authenticated claims. Holding the job's secret makes a
member, not a particular one: so each (rank, kind, rail) is admitted once, and a second process
that claims it is refused. A link is complete when all its rails are there.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence

from mccl.communicator.handshake import Claims, Verdict
from mccl.engine import Channel

# The kind of a connection in its handshake is the sender's channel.
_INCOMING = {
    int(Channel.COLLECTIVE_TX): Channel.COLLECTIVE_RX,
    int(Channel.P2P_TX): Channel.P2P_RX,
    int(Channel.CONTROL): Channel.CONTROL,
}


class Incoming:
    """``arrived(peer, channel, sockets in rail order)`` gets each complete link."""

    def __init__(
        self,
        rank: int,
        size: int,
        announced: frozenset[tuple[str, int]],
        arrived: Callable[[int, Channel, Sequence[socket.socket]], None],
    ) -> None:
        self._rank = rank
        self._size = size
        self._announced = announced
        self._arrived = arrived
        self._lock = threading.Lock()
        self._closed = False
        self._claimed: set[tuple[int, int, int]] = set()
        self._partial: dict[tuple[int, int, int], dict[int, socket.socket]] = {}

    def admit(self, claims: Claims) -> Verdict:
        if claims.channel not in _INCOMING:
            return Verdict.WRONG_CHANNEL
        if claims.channel == Channel.CONTROL and claims.rails != 1:
            return Verdict.WRONG_CHANNEL
        if claims.source >= self._size or claims.source == self._rank:
            return Verdict.WRONG_RANK
        if claims.destination_address not in self._announced:
            return Verdict.WRONG_ADDRESS
        claim = (claims.source, claims.channel, claims.rail)
        with self._lock:
            if self._closed:
                return Verdict.CLOSED
            if claim in self._claimed:
                return Verdict.DUPLICATE
            self._claimed.add(claim)
        return Verdict.ADMITTED

    def take(self, claims: Claims, sock: socket.socket) -> None:
        link = (claims.source, claims.channel, claims.rails)
        with self._lock:
            if self._closed:
                sock.close()
                return
            rails = self._partial.setdefault(link, {})
            rails[claims.rail] = sock
            if len(rails) < claims.rails:
                return
            del self._partial[link]
        socks = [rails[rail] for rail in sorted(rails)]
        self._arrived(claims.source, _INCOMING[claims.channel], socks)

    def close(self) -> None:
        """Closes the rails of links that never became complete."""
        with self._lock:
            self._closed = True
            unfinished = [sock for rails in self._partial.values() for sock in rails.values()]
            self._partial.clear()
        for sock in unfinished:
            sock.close()
