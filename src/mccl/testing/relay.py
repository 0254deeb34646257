"""A relay between the engine and one connection: counts, holds back, resets."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Callable

from mccl.engine import Channel

Leaving = Callable[["Relay", int, bytes], bytes]
"""Takes the relay, where bytes stand in the stream from the mark on, and the bytes about to leave;
returns what leaves in their stead."""

_CHUNK = 1 << 16
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on with 0 s: closing sends RST (tcp(7), socket(7))."""


class Relay:
    """Takes over a connected socket and gives the engine another one in its stead."""

    def __init__(self, fd: int, peer: int, channel: Channel, leaving: Leaving) -> None:
        self.peer = peer
        self.channel = channel
        self._lock = threading.Lock()
        self._taken = 0
        self._mark = 0
        self._leaving = leaving
        self._network = socket.socket(fileno=fd)
        self._network.setblocking(True)
        with socket.create_server(("127.0.0.1", 0)) as server:
            engine = socket.create_connection(server.getsockname())
            self._inner, _ = server.accept()
        for sock in (engine, self._inner):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        engine.setblocking(False)
        self.engine_fd = engine.detach()
        self._held_out = threading.Event()
        self._held_in = threading.Event()
        self._gone = False
        self._start(self._inner, self._network, True)
        self._start(self._network, self._inner, False)

    def _start(self, source: socket.socket, sink: socket.socket, outward: bool) -> None:
        name = f"mccl-relay-{self.peer}-{'out' if outward else 'in'}"
        args = (source, sink, outward)
        threading.Thread(target=self._pump, args=args, name=name, daemon=True).start()

    def mark(self) -> None:
        """Count from what the engine sends next. What it has sent may still wait here."""
        with self._lock, contextlib.suppress(OSError):
            waiting = struct.unpack("i", fcntl.ioctl(self._inner, termios.FIONREAD, bytes(4)))[0]
            self._mark = self._taken + waiting

    def pass_on(self, data: bytes) -> None:
        """Send bytes to the network now."""
        self._network.sendall(data)

    def cut(self, *, both_ways: bool) -> None:
        """Let nothing out any more, and with ``both_ways`` nothing in."""
        self._held_out.set()
        if both_ways:
            self._held_in.set()

    def reset(self) -> None:
        """End both connections by RST."""
        self._gone = True
        for sock in (self._network, self._inner):
            # The other thread may be inside recv, which holds the connection open; this wakes it.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                sock.shutdown(socket.SHUT_RD)
            sock.close()

    def _pump(self, source: socket.socket, sink: socket.socket, outward: bool) -> None:
        held = self._held_out if outward else self._held_in
        try:
            while source.recv(1, socket.MSG_PEEK):
                # Taken and counted in one, so that a mark falls between the two never.
                with self._lock:
                    data = source.recv(_CHUNK)
                    start, self._taken = self._taken - self._mark, self._taken + outward * len(data)
                if outward and not held.is_set():
                    data = self._leaving(self, start, data)
                if held.is_set():
                    # Bytes wait here for ever, as in a cable that was pulled.
                    threading.Event().wait()
                sink.sendall(data)
            if not self._gone and not held.is_set():
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            # One side was reset: so is the other.
            self.reset()
