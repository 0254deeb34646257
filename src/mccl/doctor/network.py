"""Interfaces with speed and MTU, which of them a job would use, and limits of socket buffers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mccl.communicator.interfaces import (
    Interface,
    choose_interfaces,
    enumerate_interfaces,
    local_address_towards,
)
from mccl.config import Config, ConfigError, Launch
from mccl.doctor.finding import Finding, Status
from mccl.doctor.system import MAC, read, sysctl
from mccl.errors import UsageError

SECTION = "network"
ENOUGH_BUFFER = 4 << 20
"""Bytes in flight on 10 Gbit/s at a round trip of 3 ms; the paper's network has 0.6 ms."""
FAST = 1000


def examine() -> Iterator[Finding]:
    """Every interface that is up, the choice among them, and the buffers."""
    interfaces = enumerate_interfaces()
    for interface in interfaces:
        if interface.addresses and not interface.loopback:
            yield describe(interface, _media_speed(interface))
    yield chosen(interfaces)
    yield from mac_buffers() if MAC else linux_buffers()


def describe(interface: Interface, speed: int | None) -> Finding:
    """One interface; slow ones and small frames on fast ones are worth a word."""
    shown = f"{speed} Mbit/s" if speed and speed > 0 else "speed unknown"
    addresses = ", ".join(str(address) for address in interface.addresses)
    value = f"{shown}, MTU {interface.mtu or 'unknown'}, {addresses}"
    if speed is not None and 0 < speed < FAST:
        advice = "Slow: a cable or another port, or name a faster one with MCCL_SOCKET_IFNAME"
        return Finding(SECTION, interface.name, Status.WARN, value, advice)
    if speed is not None and speed >= 10 * FAST and (interface.mtu or 0) < 9000:
        advice = (
            "Frames of 9000 bytes cost less CPU at this speed, if the switch and all hosts "
            "have them (Linux: ip link set dev "
            f"{interface.name} mtu 9000; macOS: networksetup -setMTU {interface.name} 9000)"
        )
        return Finding(SECTION, interface.name, Status.WARN, value, advice)
    return Finding(SECTION, interface.name, Status.OK, value)


def chosen(interfaces: list[Interface]) -> Finding:
    """Which interface a job started here with these settings would use, and why."""
    try:
        config = Config.from_env()
        towards = local_address_towards(Launch.from_env().master_addr)
        rails, why = choose_interfaces(
            interfaces, config.socket_ifname, config.listen_addr, towards
        )
    except (UsageError, ConfigError) as error:
        advice = "Name an interface that exists with MCCL_SOCKET_IFNAME"
        return Finding(SECTION, "chosen", Status.FAIL, str(error), advice)
    names = ", ".join(str(rail) for rail in rails)
    return Finding(SECTION, "chosen", Status.OK, f"{names}: {why}")


def _media_speed(interface: Interface) -> int | None:
    """The interface's speed in Mbit/s; macOS says more in words than in its counters."""
    if not MAC or interface.speed:
        return interface.speed
    done = subprocess.run(
        ["ifconfig", interface.name], capture_output=True, text=True, timeout=10, check=False
    )
    return parse_media(done.stdout)


def parse_media(text: str) -> int | None:
    """Mbit/s from the ``media:`` line of ifconfig, such as ``autoselect (10Gbase-T <full>)``."""
    found = re.search(r"media:.*?(\d+(?:\.\d+)?)(G?)base", text, re.IGNORECASE)
    if found is None:
        return None
    return int(float(found[1]) * (1000 if found[2] else 1))


# ---- socket buffers --------------------------------------------------------------------------


def linux_buffers(root: Path = Path("/proc/sys/net")) -> Iterator[Finding]:
    """Largest buffers that the system grows to by itself, and that a program may ask for."""
    for way, name in (("receive", "rmem"), ("send", "wmem")):
        automatic = read(root / f"ipv4/tcp_{name}").split()
        asked = read(root / f"core/{name}_max").strip()
        if len(automatic) != 3 or not asked:
            continue
        value = f"up to {int(automatic[2]) >> 10} KiB by itself, {int(asked) >> 10} KiB on request"
        advice = f'sudo sysctl -w net.ipv4.tcp_{name}="4096 131072 {2 * ENOUGH_BUFFER}"'
        yield _buffer(f"{way} buffer", int(automatic[2]), value, advice)
        yield from _request(way, int(asked), f"sudo sysctl -w net.core.{name}_max=")


def mac_buffers() -> Iterator[Finding]:
    """The same for macOS."""
    limit = sysctl("kern.ipc.maxsockbuf")
    if limit.isdigit():
        value = f"up to {int(limit) >> 10} KiB a socket"
        advice = f"sudo sysctl -w kern.ipc.maxsockbuf={2 * ENOUGH_BUFFER}"
        yield _buffer("socket buffer", int(limit), value, advice)
        yield from _request("socket", int(limit), "sudo sysctl -w kern.ipc.maxsockbuf=")
    yield Finding(
        SECTION,
        "local network",
        Status.OK,
        "if peers are unreachable: System Settings, Privacy & Security, Local Network, allow "
        "the terminal (or the program that starts the job)",
    )


def _buffer(name: str, limit: int, value: str, advice: str) -> Finding:
    if limit < ENOUGH_BUFFER:
        return Finding(SECTION, name, Status.WARN, value, f"Small for a fast network: {advice}")
    return Finding(SECTION, name, Status.OK, value)


def _request(way: str, limit: int, command: str) -> Iterator[Finding]:
    """A request for more than the system allows is cut silently; say so."""
    try:
        asked = Config.from_env().sock_bufsize
    except ConfigError:
        return  # the section on settings reports it
    if asked is not None and asked > limit:
        yield Finding(
            SECTION,
            f"{way} request",
            Status.WARN,
            f"MCCL_SOCK_BUFSIZE={asked} is more than the {limit} bytes that are allowed",
            f"{command}{asked}, or unset MCCL_SOCK_BUFSIZE",
        )
