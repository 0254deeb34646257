"""Network interfaces: which exist, and which ones a job should use.

Theory of operation. ``enumerate_interfaces`` asks the system (``getifaddrs``, the same call
on Linux and macOS, through ctypes) and never resolves a host name: names of one's own host
are often unresolvable, or stall for half a minute. ``choose_interfaces`` is pure and works
on such a list, so every rule below is tested without touching the machine:

* ``MCCL_LISTEN_ADDR``: the interface that has this address, and no other address of it;
* ``MCCL_SOCKET_IFNAME`` with several names: every interface that matches is a rail, in the
  order of the names;
* with one name (or an exclusion): one interface, the one that routes to MASTER_ADDR if it
  matches, else the first match;
* neither: the interface that routes to MASTER_ADDR, found by connecting a UDP socket, which
  sends no packet.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import ipaddress
import logging
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mccl.config import InterfaceRule
from mccl.errors import InternalError, UsageError

logger = logging.getLogger("mccl.communicator")

_UP, _LOOPBACK = 0x1, 0x8  # IFF_UP, IFF_LOOPBACK: the same on Linux and macOS
_AF_LINK = 18  # macOS
_BSD = sys.platform == "darwin"


@dataclass(frozen=True, slots=True)
class Address:
    """One numeric address; ``scope`` is the interface index of a link-local IPv6 one, else 0."""

    ip: str
    prefix: int
    scope: int = 0

    @property
    def family(self) -> socket.AddressFamily:
        return socket.AF_INET6 if ":" in self.ip else socket.AF_INET

    @property
    def network(self) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
        return ipaddress.ip_network(f"{self.ip}/{self.prefix}", strict=False)

    @property
    def link_local(self) -> bool:
        return ipaddress.ip_address(self.ip).is_link_local

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.ip).is_loopback

    def sockaddr(self, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
        """What ``bind`` and ``connect`` take."""
        return (self.ip, port) if ":" not in self.ip else (self.ip, port, 0, self.scope)

    def __str__(self) -> str:
        return f"{self.ip}/{self.prefix}"


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface that is up. ``speed`` is in Mbit/s, ``mtu`` in bytes; None where unknown."""

    name: str
    index: int
    addresses: tuple[Address, ...]
    loopback: bool = False
    speed: int | None = None
    mtu: int | None = None

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.addresses)) or 'no address'})"


# ---- asking the system ----------------------------------------------------------------------


class _IfAddrs(ctypes.Structure):
    """struct ifaddrs; Linux and macOS agree on it (only the sockaddrs inside differ)."""


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("addr", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("dstaddr", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def parse_sockaddr(raw: bytes, bsd: bool) -> tuple[int, bytes, int]:
    """Family, packed address and scope of a ``sockaddr``; (family, b"", 0) for other families.

    ``raw`` holds at least 28 bytes. A BSD ``sockaddr`` starts with its length, and a netmask
    leaves off trailing zeros; KAME kernels keep a link-local scope in bytes 2 and 3.
    """
    if bsd:
        length, family = raw[0], raw[1]
        raw = raw[:length].ljust(28, b"\0")
    else:
        (family,) = struct.unpack_from("=H", raw)
    if family == socket.AF_INET:
        return family, raw[4:8], 0
    if family == (30 if bsd else socket.AF_INET6):
        packed = raw[8:24]
        (scope,) = struct.unpack_from("=I", raw, 24)
        if packed[:2] == b"\xfe\x80" and packed[2:4] != b"\0\0":
            scope = scope or int.from_bytes(packed[2:4], "big")
            packed = packed[:2] + b"\0\0" + packed[4:]
        return int(socket.AF_INET6), packed, scope
    return family, b"", 0


def parse_netmask(raw: bytes, size: int, bsd: bool) -> int:
    """Length of the prefix; ``size`` is the packed address's, for masks without a family."""
    if bsd:
        raw = raw[: raw[0]].ljust(28, b"\0")
    start = 4 if size == 4 else 8
    return int.from_bytes(raw[start : start + size], "big").bit_count()


def _read(pointer: int) -> bytes:
    # A BSD sockaddr may be shorter than 28 bytes: read its own length only.
    length = ctypes.string_at(pointer, 1)[0] if _BSD else 28
    return ctypes.string_at(pointer, min(max(length, 2), 28)).ljust(28, b"\0")


def _linux_number(name: str, what: str) -> int | None:
    try:
        value = int(Path(f"/sys/class/net/{name}/{what}").read_text())
    except (OSError, ValueError):
        return None  # virtual links have no speed
    return value if value > 0 else None


def enumerate_interfaces() -> list[Interface]:
    """Every interface that is up, in the system's order, with its numeric addresses."""
    libc = ctypes.CDLL(ctypes.util.find_library("c") or None, use_errno=True)
    libc.freeifaddrs.argtypes = [ctypes.POINTER(_IfAddrs)]
    head = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(head)) != 0:
        code = ctypes.get_errno()
        raise InternalError(f"the system does not list its interfaces: getifaddrs: errno {code}")
    found: dict[str, list[Address]] = {}
    flags: dict[str, int] = {}
    link_data: dict[str, bytes] = {}
    try:
        node = head
        while node:
            entry = node.contents
            name = entry.name.decode()
            flags[name] = entry.flags
            addresses = found.setdefault(name, [])
            if entry.addr:
                family, packed, scope = parse_sockaddr(_read(entry.addr), _BSD)
                if packed and entry.netmask:
                    prefix = parse_netmask(_read(entry.netmask), len(packed), _BSD)
                    addresses.append(Address(str(ipaddress.ip_address(packed)), prefix, scope))
                elif _BSD and family == _AF_LINK and entry.data:
                    link_data[name] = ctypes.string_at(entry.data, 20)
            node = entry.next
    finally:
        libc.freeifaddrs(head)
    return [
        _interface(name, flags[name], found[name], link_data.get(name))
        for name in found
        if flags[name] & _UP
    ]


def _interface(name: str, flags: int, addresses: list[Address], link: bytes | None) -> Interface:
    if link is not None:  # struct if_data of <net/if_var.h>: ifi_mtu at 8, ifi_baudrate at 16
        mtu, _, baud = struct.unpack_from("=III", link, 8)
        speed = baud // 1_000_000 if 0 < baud < 0xFFFFFFFF else None
    else:
        mtu, speed = _linux_number(name, "mtu"), _linux_number(name, "speed")
    return Interface(
        name=name,
        index=socket.if_nametoindex(name),
        addresses=tuple(sorted(set(addresses), key=lambda a: (a.link_local, ":" in a.ip, a.ip))),
        loopback=bool(flags & _LOOPBACK),
        speed=speed,
        mtu=mtu,
    )


@functools.lru_cache(maxsize=8)
def local_address_towards(host: str | None, own_name: str | None = None) -> str | None:
    """Our numeric address on the route to ``host``; None when it cannot be told.

    No packet is sent. One's own host name (``own_name``, short or full or with ``.local``) is
    never resolved: there the default route decides. The answer is kept for the process, as a
    name may take long to resolve and every group asks.
    """
    own_name = socket.gethostname() if own_name is None else own_name
    if host is None:
        return None
    if host == "localhost":
        host = "127.0.0.1"
    try:
        target = str(ipaddress.ip_address(host.split("%")[0]))
    except ValueError:
        if host.lower().split(".")[0] == own_name.lower().split(".")[0]:
            target = "192.0.2.1"  # TEST-NET-1 (RFC 5737): only the default route has it
        else:
            target = host
    try:
        candidates = socket.getaddrinfo(target, 9, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, proto, _, sockaddr in candidates:
        with socket.socket(family, kind, proto) as probe:
            try:
                probe.connect(sockaddr)
            except OSError:
                continue  # no route in this family
            return str(probe.getsockname()[0]).split("%")[0]
    return None


# ---- choosing --------------------------------------------------------------------------------


def choose_interfaces(
    interfaces: Sequence[Interface],
    rule: InterfaceRule | None,
    listen_addr: str | None,
    towards_master: str | None,
) -> tuple[list[Interface], str]:
    """The rails, in order, and one sentence saying why.

    ``towards_master`` is our own address on the route to MASTER_ADDR, None if unknown.
    Raises UsageError, listing what exists, when nothing fits.
    """
    usable = [item for item in interfaces if item.addresses]
    if listen_addr is not None:
        return [_having_address(usable, listen_addr, interfaces)], f"MCCL_LISTEN_ADDR={listen_addr}"
    routing = next((i for i in usable if any(a.ip == towards_master for a in i.addresses)), None)
    if rule is None:
        return _default(usable, routing)
    matching = _in_order(usable, rule)
    if not matching:
        raise UsageError(
            f"MCCL_SOCKET_IFNAME={rule} matches no interface that is up and has an address. "
            f"Interfaces here: {_listing(interfaces)}. Name one of them, or unset it to use the "
            "interface that routes to MASTER_ADDR."
        )
    if len(rule.names) > 1 and not rule.exclude:
        return matching, f"MCCL_SOCKET_IFNAME={rule}"
    if routing is not None and routing in matching:
        return [routing], f"MCCL_SOCKET_IFNAME={rule}, and it routes to MASTER_ADDR"
    return [matching[0]], f"MCCL_SOCKET_IFNAME={rule}"


def _default(usable: list[Interface], routing: Interface | None) -> tuple[list[Interface], str]:
    if routing is not None:
        return [routing], "it routes to MASTER_ADDR"
    outside = [item for item in usable if not item.loopback]
    if not usable:
        raise UsageError(
            "no network interface of this host is up and has an address; expected at least the "
            "loopback interface. Bring one up."
        )
    return [(outside or usable)[0]], "MASTER_ADDR is unknown and it is the first that is up"


def _in_order(usable: list[Interface], rule: InterfaceRule) -> list[Interface]:
    matching = [item for item in usable if rule.matches(item.name)]
    if rule.exclude:
        # An exclusion means "any real interface but these".
        return sorted(matching, key=lambda item: item.loopback)

    def position(item: Interface) -> int:
        return next(
            n
            for n, name in enumerate(rule.names)
            if (item.name == name if rule.exact else item.name.startswith(name))
        )

    return sorted(matching, key=position)


def _having_address(
    usable: list[Interface], listen_addr: str, everything: Sequence[Interface]
) -> Interface:
    try:
        wanted = ipaddress.ip_address(listen_addr.split("%")[0])
    except ValueError:
        raise UsageError(
            f"MCCL_LISTEN_ADDR={listen_addr} is not a numeric address; expected one of this "
            f"host's: {_listing(everything)}."
        ) from None
    if wanted.is_unspecified:
        raise UsageError(
            f"MCCL_LISTEN_ADDR={listen_addr} means every interface, which cannot be announced to "
            f"peers; expected one of this host's addresses: {_listing(everything)}."
        )
    for item in usable:
        own = tuple(a for a in item.addresses if ipaddress.ip_address(a.ip) == wanted)
        if own:
            return Interface(item.name, item.index, own, item.loopback, item.speed, item.mtu)
    raise UsageError(
        f"MCCL_LISTEN_ADDR={listen_addr} is not an address of this host; expected one of: "
        f"{_listing(everything)}."
    )


def _listing(interfaces: Sequence[Interface]) -> str:
    return ", ".join(map(str, interfaces)) or "none"
