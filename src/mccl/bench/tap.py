"""The emulated cluster's other fabric: TAP devices on a user-space switch that adds latency.

Used where links need latency, which needs ``netem`` in the kernel otherwise. Each host's interface
is a TAP device in its namespace; ``tap_switch.py`` holds the other ends. A token bucket in the host
shapes what it sends, the switch shapes what it receives.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

from mccl.errors import UsageError

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_CHECKSUM, _TSO4, _TSO6 = 1, 2, 4
_SCRIPT = Path(__file__).with_name("tap_switch.py")


def open_tap(name: str) -> int:
    """A TAP device called ``name`` in the calling thread's network namespace; its descriptor.

    Raises:
        UsageError: the kernel has no TAP devices.
    """
    if not Path("/dev/net/tun").exists():
        raise UsageError("latency needs TAP devices and /dev/net/tun is missing: modprobe tun")
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
    fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _CHECKSUM | _TSO4 | _TSO6)
    return descriptor


def mac_of(port: int) -> str:
    """The address given to the device of a port, in hexadecimal without colons."""
    return f"02{port:010x}"


class TapSwitch:
    """The switch process of one cluster; ends when this process does.

    Args:
        taps: descriptors of the devices, by port; closed here.
        rates: bits a second towards each port, 0 unlimited.
        latency: seconds each frame takes from port to port.
        places: the group of ports that each belongs to, None for one in the core.
        uplink: bits a second, each way, between a group and the rest, 0 unlimited.
    """

    def __init__(
        self,
        taps: list[int],
        rates: list[float],
        latency: float,
        places: list[int | None],
        uplink: float,
    ) -> None:
        job = {
            "ports": taps,
            "macs": [mac_of(port) for port in range(len(taps))],
            "rates": rates,
            "latency_s": latency,
            "places": places,
            "uplink": uplink,
        }
        try:
            self._process = subprocess.Popen(
                [sys.executable, str(_SCRIPT), json.dumps(job)],
                stdin=subprocess.PIPE,
                pass_fds=taps,
                start_new_session=True,
            )
        finally:
            for tap in taps:
                os.close(tap)

    def order(self, line: str) -> None:
        """One of ``cut PORT``, ``rate PORT BITS``, ``restore PORT``."""
        if self._process.poll() is not None or self._process.stdin is None:
            raise UsageError(f"the switch ended early, exit code {self._process.returncode}")
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def close(self) -> None:
        """End the switch."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
