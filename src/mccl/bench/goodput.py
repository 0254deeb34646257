"""What plain sockets carry over the same link: the ceiling that collectives are held against.

Every rank streams to the next rank of the ring while it receives from the previous one, both
directions non-blocking on one thread, with nothing done to the bytes. That is the traffic of a
ring collective without the collective, so ``bytes / time`` compares with bus bandwidth. (iperf3's
bidirectional mode does not serve: the two directions come out lopsided.)
"""

from __future__ import annotations

import itertools
import select
import socket
import time

from mccl.bench.launch import RankContext, RankFailedError

CALL_BYTES = 1 << 20
BUFFER_BYTES = 1 << 20
_STALL_SECONDS = 120.0


class Ring:
    """Connections to the next and from the previous rank.

    Connecting is collective: every rank makes its ``Ring`` at the same point.
    """

    def __init__(self, context: RankContext) -> None:
        family = socket.AF_INET6 if ":" in context.address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            # Before connecting, so that the window scale of the handshake covers it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
            listener.bind((context.address, 0))
            listener.listen(1)
            addresses = context.gather([context.address, listener.getsockname()[1]])
            host, port = addresses[(context.rank + 1) % context.world]
            self._next = socket.socket(family, socket.SOCK_STREAM)
            self._next.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            self._next.settimeout(_STALL_SECONDS)
            self._next.connect((host, port))
            listener.settimeout(_STALL_SECONDS)
            self._previous, _ = listener.accept()
        for connection in (self._next, self._previous):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setblocking(False)
        self._out = memoryview(bytearray(CALL_BYTES))
        self._in = memoryview(bytearray(CALL_BYTES))

    def stream(self, nbytes: int, times: int = 1) -> list[float]:
        """Send ``times`` times ``nbytes`` without a pause while receiving as much.

        Returns the seconds that each ``nbytes`` took to arrive. Sending never waits for
        receiving, so a link idles only when TCP lets it.

        Raises:
            RankFailedError: the previous rank closed, or nothing moved for two minutes.
        """
        poller = select.poll()
        poller.register(self._next, select.POLLOUT)
        poller.register(self._previous, select.POLLIN)
        to_send = to_receive = nbytes * times
        watching_out = watching_in = True
        arrivals = [time.perf_counter()]
        while to_send or to_receive:
            sent = self._send(to_send) if to_send else 0
            received = self._receive(min(to_receive, self._left(nbytes, to_receive)))
            to_send -= sent
            to_receive -= received
            if received and to_receive % nbytes == 0:
                arrivals.append(time.perf_counter())
            if sent or received:
                continue
            if watching_out and not to_send:
                poller.unregister(self._next)
                watching_out = False
            if watching_in and not to_receive:
                poller.unregister(self._previous)
                watching_in = False
            if (watching_in or watching_out) and not poller.poll(_STALL_SECONDS * 1e3):
                raise RankFailedError(
                    f"plain sockets moved nothing for {_STALL_SECONDS:.0f} s with {to_send} bytes "
                    f"to send and {to_receive} to receive: is the link up?"
                )
        return [after - before for before, after in itertools.pairwise(arrivals)]

    @staticmethod
    def _left(nbytes: int, to_receive: int) -> int:
        """Bytes missing of the portion that is arriving now."""
        return to_receive % nbytes or nbytes

    def _send(self, limit: int) -> int:
        try:
            return self._next.send(self._out[: min(limit, CALL_BYTES)])
        except BlockingIOError:
            return 0

    def _receive(self, limit: int) -> int:
        if limit == 0:
            return 0
        try:
            count = self._previous.recv_into(self._in, min(limit, CALL_BYTES))
        except BlockingIOError:
            return 0
        if count == 0:
            raise RankFailedError("the previous rank closed its goodput connection")
        return count

    def close(self) -> None:
        """Close both connections."""
        self._next.close()
        self._previous.close()
