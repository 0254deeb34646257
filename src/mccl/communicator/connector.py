"""Connects to a peer and proves who we are; blocking, with every wait bounded.

What is retried, silently and only before the peer has admitted anything: a refusal or an
unreachable host for about a second (a listen queue may overflow when 200 ranks knock at
once), and a connection dropped before its challenge until the deadline (the peer's limit on
half-open connections). Everything else is an error that names interface, addresses, port and
errno. Waits are sliced, so an abort, a failure elsewhere or Ctrl-C ends them.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mccl.communicator import handshake
from mccl.communicator.handshake import Claims, HandshakeError, Initiator, RejectedError, Verdict
from mccl.communicator.options import set_buffers
from mccl.communicator.routes import Route
from mccl.errors import (
    ConnectError,
    InternalError,
    MCCLError,
    MismatchError,
    PeerDiedError,
    PeerLeftError,
)

_IP_BIND_ADDRESS_NO_PORT = 24  # <linux/in.h>
_SLICE = 0.2
_REFUSED_FOR = 1.0
_FIRST_PAUSE, _LAST_PAUSE = 0.01, 0.2

_UNREACHABLE = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM}
)
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_DROPPED = frozenset({errno.ECONNRESET, errno.EPIPE, errno.ECONNABORTED})


@dataclass(frozen=True)
class Target:
    """Whom we connect to, for messages."""

    global_rank: int
    label: str


class _DroppedError(Exception):
    """The connection ended before the challenge: nothing was admitted, so try again."""


class Connector:
    """Opens authenticated sockets; one a communicator, used from any thread."""

    def __init__(
        self,
        *,
        connect_timeout: float,
        bufsize: int | None,
        interrupted: Callable[[], None],
        platform: str = sys.platform,
    ) -> None:
        self._timeout = connect_timeout
        self._bufsize = bufsize
        self._interrupted = interrupted
        self._platform = platform

    def open(
        self,
        candidates: Sequence[Route],
        target: Target,
        key: bytes,
        claims: Claims,
        recheck: Callable[[], None],
    ) -> socket.socket:
        """A connected socket whose other end admitted ``claims``; addresses are filled in here.

        Tries the next candidate only where the system refuses the one before at once.
        ``recheck`` is called before each retry, and when the other end has left; it raises when
        trying makes no sense any more.
        Raises ConnectError, PeerDiedError (refused), PeerLeftError or MismatchError.
        """
        begin = time.monotonic()
        deadline = begin + self._timeout
        pause = _FIRST_PAUSE
        failures: dict[Route, str] = {}
        while True:
            for route in candidates:
                try:
                    return self._attempt(route, target, key, claims, deadline)
                except PeerLeftError:
                    # It is rarely to blame: it has left because of what broke the group.
                    recheck()
                    raise
                except _DroppedError as error:
                    last: Exception = error
                    failures[route] = str(error)
                    patience = self._timeout
                except OSError as error:
                    if error.errno not in _UNREACHABLE | _DROPPED | {errno.ECONNREFUSED}:
                        raise self._error(route, target, error, begin) from error
                    last = error
                    failures[route] = self._describe(route, error)
                    patience = _REFUSED_FOR
                    if error.errno not in _UNREACHABLE:
                        break
            if time.monotonic() - begin + pause > min(patience, self._timeout):
                raise self._gave_up(target, last, failures, begin) from last
            self._interrupted()
            recheck()
            time.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE)

    def _attempt(
        self, route: Route, target: Target, key: bytes, claims: Claims, deadline: float
    ) -> socket.socket:
        sock = socket.socket(route.remote.family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_buffers(sock, self._bufsize)
            if sys.platform == "linux":
                # bind() chooses the address only; a port is taken at connect(), shared between
                # destinations, so that large groups do not run out of them.
                sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
            sock.bind(route.local.sockaddr(0))
            self._connect(sock, route, deadline)
            self._shake(sock, route, target, key, claims, deadline)
        except BaseException:
            sock.close()
            raise
        return sock

    def _connect(self, sock: socket.socket, route: Route, deadline: float) -> None:
        code = sock.connect_ex(route.remote.sockaddr(route.port))
        if code == errno.EINPROGRESS:
            self._await(sock, deadline, write=True)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise OSError(code, os.strerror(code))
        if sock.getsockname() == sock.getpeername():
            # TCP's simultaneous open (RFC 9293, 3.5): with nobody listening on an ephemeral port
            # of this host, a socket may be given that very port and connect to itself.
            raise OSError(errno.ECONNREFUSED, "connected to itself: nobody listens there")

    def _shake(
        self,
        sock: socket.socket,
        route: Route,
        target: Target,
        key: bytes,
        claims: Claims,
        deadline: float,
    ) -> None:
        claims = replace(
            claims,
            source_address=sock.getsockname()[:2],
            destination_address=(route.remote.ip, route.port),
        )
        initiator = Initiator(key, claims)
        try:
            self._send(sock, initiator.hello(), deadline)
            challenge = self._receive(sock, handshake.CHALLENGE_SIZE, deadline)
        except OSError as error:
            if error.errno in _DROPPED:
                raise _DroppedError(f"{route}: dropped before its challenge ({error})") from error
            raise
        try:
            self._send(sock, initiator.on_challenge(challenge), deadline)
            initiator.on_verdict(self._receive(sock, handshake.VERDICT_SIZE, deadline))
        except HandshakeError as error:
            raise _refused(route, target, error) from error
        except OSError as error:
            # Never retried: the other end may have admitted us.
            raise self._error(route, target, error, deadline - self._timeout) from error

    def _send(self, sock: socket.socket, data: bytes, deadline: float) -> None:
        while data:
            try:
                data = data[sock.send(data) :]
            except BlockingIOError:
                self._await(sock, deadline, write=True)

    def _receive(self, sock: socket.socket, size: int, deadline: float) -> bytes:
        data = b""
        while len(data) < size:
            try:
                chunk = sock.recv(size - len(data))
            except BlockingIOError:
                self._await(sock, deadline, write=False)
                continue
            if not chunk:
                raise OSError(errno.ECONNRESET, "the other end closed the connection")
            data += chunk
        return data

    def _await(self, sock: socket.socket, deadline: float, *, write: bool) -> None:
        # poll, not select: descriptors beyond 1024 are ordinary in large jobs.
        poller = select.poll()
        poller.register(sock, select.POLLOUT if write else select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise OSError(errno.ETIMEDOUT, "no answer in time")
            if poller.poll(max(1, int(min(left, _SLICE) * 1000))):
                return
            self._interrupted()

    # ---- what went wrong ------------------------------------------------------------------

    def _gave_up(
        self, target: Target, last: Exception, failures: dict[Route, str], begin: float
    ) -> MCCLError:
        waited = time.monotonic() - begin
        tried = "; ".join(failures.values())
        who = f"rank {target.global_rank} on {target.label}"
        if isinstance(last, OSError) and last.errno == errno.ECONNREFUSED:
            return PeerDiedError(
                f"{who} refuses connections: {tried}. It listened when it joined, so its process "
                f"has ended, or a firewall rejects the port. Look at rank {target.global_rank}'s "
                "log.",
                peer=target.global_rank,
                host=target.label,
                phase="connect",
                waited=waited,
            )
        if isinstance(last, _DroppedError):
            return PeerLeftError(
                f"{who} drops every connection before the handshake: {tried}. Expected it to be "
                f"in the group still; it has probably left it. Look at rank "
                f"{target.global_rank}'s log.",
                peer=target.global_rank,
                host=target.label,
                phase="connect",
                waited=waited,
            )
        return ConnectError(
            f"cannot connect to {who}: {tried}. {self._hint(next(iter(failures)), last)}",
            peer=target.global_rank,
            host=target.label,
            phase="connect",
            waited=waited,
        )

    def _error(self, route: Route, target: Target, error: OSError, begin: float) -> MCCLError:
        if error.errno in _EXHAUSTED:
            name = errno.errorcode[error.errno or 0]
            return InternalError(
                f"the system refuses another socket to rank {target.global_rank}: {name} "
                f"({error.strerror}). Raise the limit on open files (ulimit -n) or free memory.",
                peer=target.global_rank,
                phase="resource",
            )
        return ConnectError(
            f"cannot connect to rank {target.global_rank} on {target.label}: "
            f"{self._describe(route, error)}. {self._hint(route, error)}",
            peer=target.global_rank,
            host=target.label,
            phase="connect",
            waited=time.monotonic() - begin,
        )

    @staticmethod
    def _describe(route: Route, error: OSError) -> str:
        name = errno.errorcode.get(error.errno or 0, "unknown")
        return f"{route}: {name} (errno {error.errno}, {error.strerror})"

    def _hint(self, route: Route, error: Exception) -> str:
        code = error.errno if isinstance(error, OSError) else None
        if self._platform == "darwin" and code in (errno.EHOSTUNREACH, errno.EACCES, 65):
            return (
                "macOS may be denying access to the local network: in System Settings > Privacy "
                "& Security > Local Network allow the program that started this job (the terminal, "
                "tmux or the launch agent is the one that counts), or start it from an ssh login."
            )
        if code == errno.ETIMEDOUT:
            return (
                "Nothing answered: check that the host is up and that no firewall drops the port; "
                "MCCL_PORT_BASE makes ports predictable."
            )
        if code == errno.EADDRNOTAVAIL:
            return f"{route.local.ip} is no longer an address of {route.interface}."
        return (
            f"Check the route between the two hosts, or name another interface than "
            f"{route.interface} with MCCL_SOCKET_IFNAME."
        )


def _refused(route: Route, target: Target, error: HandshakeError) -> MCCLError:
    who = f"rank {target.global_rank} on {target.label}"
    kind: type[MCCLError] = ConnectError
    what = "was not accepted"
    advice = "Set the same MCCL_SECRET (or MCCL_SECRET_FILE) on every rank, or on none."
    if isinstance(error, RejectedError):
        what = "did not accept us"
        advice = "Check that each rank number is started once."
        if error.verdict == Verdict.WRONG_RANK:
            kind, advice = MismatchError, "Start every rank with the same world size."
        elif error.verdict == Verdict.CLOSED:
            kind, advice = PeerLeftError, f"Look at rank {target.global_rank}'s log."
        elif error.verdict == Verdict.WRONG_ADDRESS:
            advice = "Let hosts reach each other without address translation."
    return kind(
        f"{who} answered ({route}) and {what}: {error}. {advice}",
        peer=target.global_rank,
        host=target.label,
        phase="connect",
    )
