"""Socket options of links, the same on both ends.

Data links carry TCP_NODELAY and the configured buffers, nothing that could end them: a peer
that computes for a minute closes its receive window meanwhile, and TCP_USER_TIMEOUT would
(on Linux, since 4.4: tcp_probe_timer) reset the connection although the peer answers every
probe. So only control links, which the engine always reads, carry it. They notice a cut cable
for the whole communicator.
"""

from __future__ import annotations

import socket
import sys

_DARWIN_SO_NOSIGPIPE = 0x1022
_DARWIN_TCP_KEEPALIVE = 0x10
_DARWIN_TCP_KEEPINTVL = 0x101
_DARWIN_TCP_KEEPCNT = 0x102


def set_buffers(sock: socket.socket, bufsize: int | None) -> None:
    """SO_SNDBUF and SO_RCVBUF in bytes; None leaves the system's automatic sizing on.

    Takes effect on the window scale only before connect() or listen() (RFC 7323, 2.3).
    """
    if bufsize:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, bufsize)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, bufsize)


def prepare(sock: socket.socket, *, control: bool, peer_timeout: float) -> None:
    """Makes a connected socket ready for the engine; ``peer_timeout`` is in seconds."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if sys.platform == "darwin":
        sock.setsockopt(socket.SOL_SOCKET, _DARWIN_SO_NOSIGPIPE, 1)
    if control:
        _keepalive(sock, peer_timeout)


def _keepalive(sock: socket.socket, peer_timeout: float) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = max(1, int(peer_timeout / 2))
    interval = max(1, int(peer_timeout / 6))
    tcp = socket.IPPROTO_TCP
    if sys.platform == "darwin":
        sock.setsockopt(tcp, _DARWIN_TCP_KEEPALIVE, idle)
        sock.setsockopt(tcp, _DARWIN_TCP_KEEPINTVL, interval)
        sock.setsockopt(tcp, _DARWIN_TCP_KEEPCNT, 3)
    else:
        sock.setsockopt(tcp, socket.TCP_KEEPIDLE, idle)
        sock.setsockopt(tcp, socket.TCP_KEEPINTVL, interval)
        sock.setsockopt(tcp, socket.TCP_KEEPCNT, 3)
        sock.setsockopt(tcp, socket.TCP_USER_TIMEOUT, max(1, int(peer_timeout * 1000)))
