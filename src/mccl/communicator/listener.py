"""The one listener of a process: strangers knock here, members of every group are let in.

Theory of operation. One daemon thread runs a selector loop over the listening sockets (only
on the addresses that groups asked for) and the connections that are still shaking hands. A
connection goes HELLO -> CHALLENGE -> PROOF -> VERDICT (``handshake.py``); then its descriptor
is handed to the group it is for and this file knows it no longer. What a stranger can cost is
bounded: a fixed number of half-open connections of a few hundred bytes each (the oldest is
dropped when one more comes), a deadline on each, and a fixed number of log lines.

A greeting for a group that is not registered here yet is held (its member may simply be early)
until it is, within a bound and a time limit; one for a group that was closed here is dropped.

The thread owns ``_connections`` and the selector. ``_lock`` guards ``_registrations`` and
``_closed``; callbacks into a group are made without it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mccl.communicator import handshake
from mccl.communicator.binding import open_listening
from mccl.communicator.handshake import Acceptor, Claims, HandshakeError, Verdict
from mccl.communicator.interfaces import Address
from mccl.communicator.throttle import Throttle
from mccl.errors import InternalError

logger = logging.getLogger("mccl.communicator")

GroupKey = tuple[bytes, int, int]
"""Hash of the group's name, epoch, our rank in it."""

_REMEMBERED_GROUPS = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What strangers may cost; times in seconds."""

    half_open: int = 128
    held: int = 1024
    handshake_seconds: float = 5.0
    hold_seconds: float = 60.0


@dataclass(frozen=True)
class Registration:
    """One member of one group in this process.

    ``admit`` is called on the listener's thread with authenticated claims and decides;
    ``take`` then gets the connected socket once the verdict has left. Neither may block.
    """

    key: GroupKey
    job: bytes
    secret_key: bytes = field(repr=False)
    admit: Callable[[Claims], Verdict]
    take: Callable[[Claims, socket.socket], None]


@dataclass(eq=False)
class _Connection:
    sock: socket.socket
    remote: str
    deadline: float
    acceptor: Acceptor = field(default_factory=Acceptor)
    wanted: int = handshake.HELLO_SIZE
    received: bytes = b""
    outgoing: bytes = b""
    claims: Claims | None = None
    registration: Registration | None = None
    admitted: bool = False
    finished: bool = False

    @property
    def held(self) -> bool:
        return self.claims is not None and self.registration is None


class Listener:
    """Listening sockets and handshakes in progress of one process."""

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        port: int = 0,
        bufsize: int | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.port = port
        self.pid = os.getpid()
        self._bufsize = bufsize
        self._lock = threading.Lock()
        self._admitting = threading.RLock()
        self._bind_lock = threading.Lock()
        self._registrations: dict[GroupKey, Registration] = {}
        self._closed: OrderedDict[GroupKey, None] = OrderedDict()
        self._bound: dict[tuple[str, int], socket.socket] = {}
        self._new_sockets: deque[socket.socket] = deque()
        self._connections: OrderedDict[_Connection, None] = OrderedDict()
        self._listening: list[socket.socket] = []
        self._paused_until: float | None = None
        self._stopping = False
        self._throttle = Throttle(lines=5, seconds=10.0)
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="mccl-listener", daemon=True)
        self._thread.start()

    # ---- for the groups -----------------------------------------------------------------

    def bind(self, addresses: Sequence[Address], interface: str) -> list[tuple[Address, int]]:
        """Listens on each address (once a process); returns them with their ports."""
        result: list[tuple[Address, int]] = []
        with self._bind_lock:
            for address in addresses:
                where = (address.ip, address.scope)
                if where not in self._bound:
                    sock = open_listening(address, self.port, self._bufsize, interface)
                    if sock is None:
                        continue
                    self._bound[where] = sock
                    self._new_sockets.append(sock)
                result.append((address, int(self._bound[where].getsockname()[1])))
        self._wake()
        if not result:
            raise InternalError(
                f"no address of interface {interface} can be listened on: "
                f"{', '.join(map(str, addresses))}; expected at least one"
            )
        return result

    def register(self, registration: Registration) -> None:
        with self._lock:
            if registration.key in self._registrations:
                raise InternalError("this rank of this group is registered in this process already")
            self._registrations[registration.key] = registration
            self._closed.pop(registration.key, None)
        self._wake()

    def deregister(self, key: GroupKey) -> None:
        """Forgets a group; connections that ask for it from now on are dropped.

        Whoever was told that it is admitted has been handed over when this returns.
        """
        with self._admitting, self._lock:
            self._registrations.pop(key, None)
            self._closed[key] = None
            while len(self._closed) > _REMEMBERED_GROUPS:
                self._closed.popitem(last=False)
        self._wake()

    def close(self) -> None:
        """Stops the thread and closes every socket that was not handed over."""
        if self.pid != os.getpid():
            self.abandon()
            return
        self._stopping = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def abandon(self) -> None:
        """In a forked child: closes the inherited descriptors, leaves the parent's poll set.

        A listening socket that lived on in a child would make connections to a dead parent
        hang in its backlog instead of being refused.
        """
        for sock in (*self._bound.values(), *(c.sock for c in self._connections)):
            sock.close()
        self._wake_read.close()
        self._wake_write.close()
        self._selector.close()

    def _wake(self) -> None:
        # Full: the loop is about to wake anyhow. Closed: there is no loop to wake.
        with contextlib.suppress(OSError):
            self._wake_write.send(b"\0")

    # ---- the loop -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                for key, events in self._selector.select(self._timeout()):
                    self._dispatch(key, events)
                self._listen_again()
                self._release_held()
                self._expire()
        finally:
            for sock in (*self._bound.values(), *(c.sock for c in self._connections)):
                sock.close()
            self._connections.clear()
            self._selector.close()
            self._wake_read.close()
            self._wake_write.close()

    def _timeout(self) -> float | None:
        now = time.monotonic()
        ends = [c.deadline for c in self._connections]
        if self._paused_until is not None:
            ends.append(self._paused_until)
        return max(0.0, min(ends) - now) if ends else None

    def _dispatch(self, key: selectors.SelectorKey, events: int) -> None:
        if key.fileobj is self._wake_read:
            with contextlib.suppress(BlockingIOError):
                while self._wake_read.recv(4096):
                    pass
        elif isinstance(key.data, _Connection):
            if key.data.held:
                self._check_held(key.data)
            elif not key.data.finished:
                self._advance(key.data)
        elif isinstance(key.fileobj, socket.socket):
            self._accept(key.fileobj)

    def _listen_again(self) -> None:
        while self._new_sockets:
            sock = self._new_sockets.popleft()
            self._listening.append(sock)
            if self._paused_until is None:
                self._selector.register(sock, selectors.EVENT_READ)
        if self._paused_until is not None and time.monotonic() >= self._paused_until:
            self._paused_until = None
            for sock in self._listening:
                self._selector.register(sock, selectors.EVENT_READ)

    def _pause(self) -> None:
        """Stops watching the listening sockets for a moment, rather than spin on them."""
        if self._paused_until is None:
            for sock in self._listening:
                self._selector.unregister(sock)
        self._paused_until = time.monotonic() + 0.1

    def _accept(self, listening: socket.socket) -> None:
        now = time.monotonic()
        if self._paused_until is not None:
            return
        try:
            sock, remote = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # Out of descriptors: make room.
            self._pause()
            self._drop_oldest(f"the system refuses another connection: {error}")
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        half_open = sum(1 for c in self._connections if not c.held)
        if half_open >= self.limits.half_open:
            self._drop_oldest("too many unfinished connections")
        connection = _Connection(
            sock, f"{remote[0]}:{remote[1]}", now + self.limits.handshake_seconds
        )
        self._connections[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, connection)
        self._advance(connection)

    def _advance(self, connection: _Connection) -> None:
        # From the verdict to the hand-over without a deregister() between: a peer that was
        # admitted gets either a link or, if the group ends, a goodbye on it; never a bare close.
        with self._admitting:
            self._converse(connection)

    def _converse(self, connection: _Connection) -> None:
        try:
            self._write(connection)
            # Exactly the frame's bytes are read: what follows belongs to the engine.
            while not connection.finished and not connection.outgoing and not connection.held:
                chunk = connection.sock.recv(connection.wanted - len(connection.received))
                if not chunk:
                    raise HandshakeError("it closed the connection before its proof")
                connection.received += chunk
                if len(connection.received) == connection.wanted:
                    frame, connection.received = connection.received, b""
                    self._frame(connection, frame)
                    self._write(connection)
        except (BlockingIOError, InterruptedError):
            self._interest(connection)
        except (HandshakeError, OSError) as error:
            self._drop(connection, str(error))
        else:
            if not connection.finished:
                self._interest(connection)

    def _check_held(self, connection: _Connection) -> None:
        """A held peer has nothing to say before our challenge: it hung up, or talks out of turn."""
        try:
            ahead = connection.sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._drop(connection, str(error))
            return
        self._drop(connection, "it talks before it was asked" if ahead else "it gave up waiting")

    def _write(self, connection: _Connection) -> None:
        while connection.outgoing:
            sent = connection.sock.send(connection.outgoing)
            connection.outgoing = connection.outgoing[sent:]
        if connection.admitted and not connection.finished:
            self._hand_over(connection)

    def _interest(self, connection: _Connection) -> None:
        events = selectors.EVENT_WRITE if connection.outgoing else selectors.EVENT_READ
        self._selector.modify(connection.sock, events, connection)

    def _frame(self, connection: _Connection, frame: bytes) -> None:
        if connection.claims is None:
            connection.claims = connection.acceptor.on_hello(frame)
            self._greeted(connection)
            return
        connection.acceptor.on_proof(frame)
        registration = connection.registration
        assert registration is not None
        with self._lock:
            current = self._registrations.get(registration.key) is registration
        verdict = registration.admit(connection.claims) if current else Verdict.CLOSED
        connection.outgoing = connection.acceptor.verdict(verdict)
        connection.admitted = verdict is Verdict.ADMITTED
        if not connection.admitted:
            self._write(connection)
            raise HandshakeError(
                f"rank {connection.claims.source} proved itself but was refused: "
                f"{handshake.REASONS[verdict]}"
            )

    def _greeted(self, connection: _Connection) -> None:
        """Challenges a greeting for a group that is here; holds one for a group that is not."""
        claims = connection.claims
        assert claims is not None
        key = (claims.group, claims.epoch, claims.destination)
        with self._lock:
            registration = self._registrations.get(key)
            closed = key in self._closed
        if registration is not None:
            if registration.job != claims.job:
                raise HandshakeError("it belongs to another job")
            connection.registration = registration
            connection.wanted = handshake.PROOF_SIZE
            connection.deadline = time.monotonic() + self.limits.handshake_seconds
            connection.outgoing = connection.acceptor.challenge(registration.secret_key)
            return
        if closed:
            raise HandshakeError("it asks for a group that was closed here")
        held = [c for c in self._connections if c.held]
        if len(held) > self.limits.held:
            self._drop(held[0], "too many connections wait for groups that do not exist yet")
        connection.deadline = time.monotonic() + self.limits.hold_seconds

    def _release_held(self) -> None:
        for connection in [c for c in self._connections if c.held]:
            assert connection.claims is not None
            key = (connection.claims.group, connection.claims.epoch, connection.claims.destination)
            with self._lock:
                known = key in self._registrations or key in self._closed
            if not known:
                continue
            try:
                self._greeted(connection)
            except HandshakeError as error:
                self._drop(connection, str(error))
            else:
                self._advance(connection)

    def _hand_over(self, connection: _Connection) -> None:
        registration, claims = connection.registration, connection.claims
        assert registration is not None
        assert claims is not None
        self._forget(connection)
        registration.take(claims, connection.sock)

    def _expire(self) -> None:
        now = time.monotonic()
        for connection in [c for c in self._connections if c.deadline <= now]:
            reason = (
                "its group was never created here"
                if connection.held
                else f"no handshake within {self.limits.handshake_seconds:g} s"
            )
            self._drop(connection, reason)

    def _drop_oldest(self, reason: str) -> None:
        oldest = next((c for c in self._connections if not c.held), None)
        if oldest is not None:
            self._drop(oldest, reason)

    def _drop(self, connection: _Connection, reason: str) -> None:
        if connection.finished:
            return
        self._forget(connection)
        connection.sock.close()
        for line in self._throttle.allow(f"connection from {connection.remote} dropped: {reason}"):
            logger.warning("%s", line)

    def _forget(self, connection: _Connection) -> None:
        connection.finished = True
        self._selector.unregister(connection.sock)
        self._connections.pop(connection, None)
