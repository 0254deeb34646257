"""Which interfaces are used: pure tables, and what the machine itself lists."""

from __future__ import annotations

import socket
import struct

import pytest

from mccl.communicator import interfaces as ifs
from mccl.communicator.interfaces import Address, Interface, choose_interfaces
from mccl.config import Config, InterfaceRule
from mccl.errors import UsageError


def interface(name: str, *addresses: str, loopback: bool = False) -> Interface:
    parsed = tuple(Address(a.split("/")[0], int(a.split("/")[1])) for a in addresses)
    return Interface(name, 1, parsed, loopback)


LO = interface("lo", "127.0.0.1/8", "::1/128", loopback=True)
ETH0 = interface("eth0", "10.0.0.5/24", "fd00::5/64")
ETH1 = interface("eth1", "10.0.1.5/24")
EN0 = interface("en0", "192.168.1.5/24")
DOCKER = interface("docker0", "172.17.0.1/16")
BARE = interface("eth9")
TABLE = [LO, DOCKER, ETH0, ETH1, EN0, BARE]


def names(rule: str | None, master: str | None = None, listen: str | None = None) -> list[str]:
    environ = {"MCCL_SOCKET_IFNAME": rule} if rule else {}
    parsed = Config.from_env(environ).socket_ifname
    return [i.name for i in choose_interfaces(TABLE, parsed, listen, master)[0]]


@pytest.mark.parametrize(
    ("rule", "master", "expected"),
    [
        (None, "10.0.1.5", ["eth1"]),
        (None, "127.0.0.1", ["lo"]),
        (None, None, ["docker0"]),
        ("eth", None, ["eth0"]),
        ("eth", "10.0.1.5", ["eth1"]),
        ("=eth1", "10.0.0.5", ["eth1"]),
        ("=eth0,eth1", None, ["eth0", "eth1"]),
        ("=eth1,eth0", None, ["eth1", "eth0"]),
        ("eth,en", None, ["eth0", "eth1", "en0"]),
        ("en0,eth1", "10.0.0.5", ["en0", "eth1"]),
        ("^docker,lo", None, ["eth0"]),
        ("^docker", "10.0.1.5", ["eth1"]),
        ("^=docker0,eth0", None, ["eth1"]),
        ("^docker,eth,en", None, ["lo"]),
    ],
)
def test_the_grammar_of_nccl(rule: str | None, master: str | None, expected: list[str]) -> None:
    assert names(rule, master) == expected


@pytest.mark.parametrize("rule", ["wlan", "=eth", "=eth9", "^lo,docker,eth,en"])
def test_an_impossible_name_lists_what_exists(rule: str) -> None:
    with pytest.raises(UsageError) as info:
        names(rule)
    for part in (rule, "eth0 (10.0.0.5/24, fd00::5/64)", "lo (127.0.0.1/8"):
        assert part in str(info.value)


def test_listen_addr_chooses_its_interface_and_only_that_address() -> None:
    chosen, _ = choose_interfaces(TABLE, None, "fd00::5", None)
    assert [(i.name, [a.ip for a in i.addresses]) for i in chosen] == [("eth0", ["fd00::5"])]


@pytest.mark.parametrize(
    ("listen", "why"),
    [("0.0.0.0", "every interface"), ("8.8.8.8", "not an address"), ("mac-1", "numeric")],
)
def test_an_impossible_listen_addr_says_so(listen: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        names(None, None, listen)


def test_no_interface_at_all() -> None:
    with pytest.raises(UsageError, match="loopback"):
        choose_interfaces([BARE], None, None, None)


def test_the_machine_lists_its_loopback() -> None:
    found = {i.name: i for i in ifs.enumerate_interfaces()}
    loop = next(i for i in found.values() if i.loopback)
    assert Address("127.0.0.1", 8) in loop.addresses
    assert loop.index == socket.if_nametoindex(loop.name)


def test_own_host_name_is_never_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(host: str, *_: object, **__: object) -> list[object]:
        asked.append(host)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    ifs.local_address_towards.cache_clear()
    for name in ("mac-1", "mac-1.local", "MAC-1.lan"):
        ifs.local_address_towards(name, own_name="mac-1.local")
    assert asked == ["192.0.2.1"] * 3
    ifs.local_address_towards("mac-1", own_name="mac-1.local")  # nor does a second group ask again
    assert len(asked) == 3


def test_route_to_a_loopback_master() -> None:
    assert ifs.local_address_towards("127.0.0.1") == "127.0.0.1"
    assert ifs.local_address_towards("localhost") == "127.0.0.1"
    assert ifs.local_address_towards(None) is None


def test_macos_sockaddrs_are_understood() -> None:
    """Layouts of <sys/socket.h> and <netinet6/in6.h> of macOS, with KAME's embedded scope."""
    v4 = bytes([16, 2]) + b"\0\0" + bytes([10, 0, 0, 7])
    assert ifs.parse_sockaddr(v4.ljust(28, b"\0"), bsd=True) == (
        socket.AF_INET,
        bytes([10, 0, 0, 7]),
        0,
    )
    packed = bytes.fromhex("fe80000400000000020000fffe000001")
    v6 = bytes([28, 30]) + b"\0\0" + b"\0" * 4 + packed + struct.pack("=I", 0)
    family, address, scope = ifs.parse_sockaddr(v6, bsd=True)
    assert (family, scope) == (socket.AF_INET6, 4)
    assert address == bytes.fromhex("fe80000000000000020000fffe000001")


def test_macos_netmasks_leave_off_trailing_zeros() -> None:
    short = bytes([7, 0, 0, 0, 255, 255, 255])
    assert ifs.parse_netmask(short.ljust(28, b"\xaa"), 4, bsd=True) == 24
    whole = bytes([28, 30]) + b"\0" * 6 + b"\xff" * 8 + b"\0" * 12
    assert ifs.parse_netmask(whole, 16, bsd=True) == 64


def test_rule_is_the_configurations() -> None:
    assert InterfaceRule(("eth",)).matches("eth0")
