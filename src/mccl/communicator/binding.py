"""Opens a listening socket on one address, or says which port is taken and what to do."""

from __future__ import annotations

import errno
import logging
import socket

from mccl.communicator.interfaces import Address
from mccl.communicator.options import set_buffers
from mccl.errors import ConnectError, InternalError

logger = logging.getLogger("mccl.communicator")

_BACKLOG = 512


def open_listening(
    address: Address, port: int, bufsize: int | None, interface: str
) -> socket.socket | None:
    """A non-blocking listening socket; None when an IPv6 address is not usable (yet)."""
    sock = socket.socket(address.family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if address.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        set_buffers(sock, bufsize)  # accepted sockets inherit them
        sock.bind(address.sockaddr(port))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRNOTAVAIL and address.family == socket.AF_INET6:
            # Tentative or duplicate address (RFC 4862): others of the interface serve.
            logger.debug("not listening on %s of %s: %s", address.ip, interface, error)
            return None
        raise _bind_error(error, address, port, interface) from error
    return sock


def _bind_error(
    error: OSError, address: Address, port: int, interface: str
) -> ConnectError | InternalError:
    where = f"{address.ip} port {port} (interface {interface})"
    if error.errno == errno.EADDRINUSE:
        return ConnectError(
            f"port {port} is in use on {address.ip} (interface {interface}). Stop the process that "
            "has it, set MCCL_PORT_BASE to a free range (each process uses the base plus its local "
            "rank), or unset it to take any free port.",
            phase="connect",
        )
    if error.errno == errno.EACCES:
        return ConnectError(
            f"no permission to listen on {where}: ports below 1024 need root. Set MCCL_PORT_BASE "
            "to 1024 or more, or unset it.",
            phase="connect",
        )
    return InternalError(f"cannot listen on {where}: {error} (errno {error.errno})")
