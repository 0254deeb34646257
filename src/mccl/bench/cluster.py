"""An emulated cluster on one Linux machine: hosts as network namespaces on one switch.

Theory of operation. Every host is a network namespace with one interface (``e0``, ``e1``, …: as
many names as hosts, so nothing may assume a common one), joined by a veth pair to a bridge that has
a namespace of its own. A token bucket on each end of a pair shapes one direction of that link; a
bridge forwards at memory speed, so a link is all that limits a host. Several switches are several
bridges in that namespace, each joined to a core bridge by one more pair, its uplink. With latency
asked for, a user-space switch (``tap``) takes the place of all bridges.

Hosts of one switch have a subnet of their own, as behind the switches of a rack; everything is
one Ethernet all the same, and a route says so.

The namespaces have no names. This process holds them by descriptor, ranks enter them by
``/proc/PID/fd/N``, and the kernel takes namespaces, interfaces and bridge away when the last
holder is gone. So any number of clusters coexist, and nothing is left even after ``kill -9``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from types import TracebackType

from mccl.bench.launch import CLONE_NEWNET, enter_namespace
from mccl.bench.switches import Switches
from mccl.bench.tap import TapSwitch, mac_of, open_tap
from mccl.errors import UsageError

_NET = "10.9"
_SWITCH_ADDRESS = f"{_NET}.255.254"
_MAX_HOSTS = 1000


def missing() -> str | None:
    """What keeps this machine from emulating a cluster, None if nothing."""
    if sys.platform != "linux":
        return "an emulated cluster needs Linux (network namespaces); run the benchmark plainly"
    if os.geteuid() != 0:
        return "an emulated cluster needs root (network namespaces); run it with sudo"
    for tool, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(tool) is None:
            return f"{tool} not found; install {package}"
    return None


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """The calling thread is in a network namespace for the length of the block."""
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        enter_namespace(namespace)
        yield
    finally:
        enter_namespace(f"/proc/self/fd/{home}")
        os.close(home)


class Cluster:
    """``hosts`` namespaces whose links carry ``rate`` bits a second in each direction.

    ``latency`` is in seconds from host to host, one way. ``switches``: one, where not given.

    A context manager. Links can be cut, slowed and restored while ranks run.

    Raises:
        UsageError: this machine cannot, or the numbers make no sense.
    """

    def __init__(
        self,
        hosts: int,
        rate: float,
        mtu: int = 1500,
        latency: float = 0.0,
        switches: Switches | None = None,
    ) -> None:
        lack = missing()
        if lack is not None:
            raise UsageError(lack)
        if not 1 <= hosts <= _MAX_HOSTS:
            raise UsageError(f"{hosts} hosts asked for; between 1 and {_MAX_HOSTS} are possible")
        if rate < 1e4 or not 576 <= mtu <= 65535:
            raise UsageError(f"rate {rate:g} bit/s or MTU {mtu} out of range (10kbit, 576..65535)")
        if not 0 <= latency <= 1:
            raise UsageError(f"latency {latency:g} s out of range (0..1 s)")
        self.hosts, self.rate, self.mtu, self.latency = hosts, rate, mtu, latency
        self.switches = Switches(hosts) if switches is None else switches
        if self.switches.hosts != hosts:
            raise UsageError(f"switches for {self.switches.hosts} hosts in a cluster of {hosts}")
        self._taps: TapSwitch | None = None
        self._open = contextlib.ExitStack()
        self._switch = ""
        self._paths: list[str] = []

    def __enter__(self) -> Cluster:
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._switch = self._new_namespace()
            self._paths = [self._new_namespace() for _ in range(self.hosts)]
            if self.latency > 0:
                self._build_taps()
            else:
                self._build_bridge()
            undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the namespaces; the kernel removes them once no rank is in them."""
        self._open.close()
        self._paths = []

    # -- where things are

    def address(self, host: int) -> str:
        """IPv4 address of a host."""
        if not self.switches.several:
            return f"{_NET}.{host // 250}.{host % 250 + 1}"
        switch = self.switches.of(host)
        return f"{_NET}.{switch}.{self.switches.members[switch].index(host) + 1}"

    def interface(self, host: int) -> str:
        """Name of the host's interface."""
        return f"e{host}"

    def namespace(self, host: int) -> str:
        """Path of the host's namespace, for ``nsenter --net=PATH`` while this process lives."""
        return self._paths[host]

    @property
    def switch_address(self) -> str:
        """Address of the switch itself, reachable from every host, where the Store lives."""
        return _SWITCH_ADDRESS

    def inside_switch(self) -> contextlib.AbstractContextManager[None]:
        """The calling thread is in the switch's namespace for the length of the block."""
        return inside(self._switch)

    def listen(self) -> socket.socket:
        """A listening TCP socket on the switch, on a port the system chose."""
        with self.inside_switch():
            return socket.create_server(("", 0), backlog=4 * self.hosts)

    # -- links while it runs

    def cut(self, host: int) -> None:
        """The switch drops everything from and to ``host``; the host still sees its link up."""
        self._plug(host, False)

    def cutting(self, host: int) -> list[str]:
        """The command that does what ``cut`` does, for a process on one of the hosts.

        Raises:
            UsageError: the switch is the user-space one, which only this process can tell.
        """
        if self._taps is not None:
            raise UsageError("a cluster with latency is cut by the process that made it only")
        return _in(self._switch, "ip", *_port(host, False))

    def slow(self, host: int, rate: float) -> None:
        """Change the rate of a host's link, both ways, to ``rate`` bits a second."""
        self._shape(host, rate, "change")

    def restore(self, host: int) -> None:
        """Undo ``cut`` and ``slow``."""
        self._plug(host, True)
        self._shape(host, self.rate, "change")

    # -- building

    def _new_namespace(self) -> str:
        libc = ctypes.CDLL(None, use_errno=True)
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.unshare(CLONE_NEWNET) != 0:
                code = ctypes.get_errno()
                raise OSError(code, f"cannot make a network namespace: {os.strerror(code)}")
            held = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            enter_namespace(f"/proc/self/fd/{home}")
            os.close(home)
        self._open.callback(os.close, held)
        return f"/proc/{os.getpid()}/fd/{held}"

    def _build_bridge(self) -> None:
        lines = [
            "link set lo up",
            "link add sw type bridge",
            f"link set sw mtu {self.mtu} up",
            f"addr add {_SWITCH_ADDRESS}/16 dev sw",
        ]
        if self.switches.several:
            for switch in range(self.switches.count):
                lines += [
                    f"link add sw{switch} type bridge",
                    f"link set sw{switch} mtu {self.mtu} up",
                    f"link add up{switch} type veth peer name down{switch}",
                    f"link set up{switch} mtu {self.mtu} master sw{switch} up",
                    f"link set down{switch} mtu {self.mtu} master sw up",
                ]
        for host, path in enumerate(self._paths):
            name = self.interface(host)
            bridge = f"sw{self.switches.of(host)}" if self.switches.several else "sw"
            lines.append(f"link add p{host} type veth peer name {name} netns {path}")
            lines.append(f"link set p{host} mtu {self.mtu} master {bridge} up")
        _batch(self._switch, "ip", lines)
        if self.switches.uplink:
            shape = _bucket(self.switches.uplink)
            for switch in range(self.switches.count):
                ends = (f"up{switch}", f"down{switch}")
                _batch(self._switch, "tc", [f"qdisc add dev {end} {shape}" for end in ends])
        for host in range(self.hosts):
            self._configure(host)
            self._shape(host, self.rate, "add")

    def _build_taps(self) -> None:
        taps = []
        for path, name in (
            *((path, self.interface(host)) for host, path in enumerate(self._paths)),
            (self._switch, "sw"),
        ):
            with inside(path):
                taps.append(open_tap(name))
        rates = [*([self.rate] * self.hosts), 0.0]
        places = [*(self.switches.of(host) for host in range(self.hosts)), None]
        self._taps = TapSwitch(taps, rates, self.latency, places, self.switches.uplink)
        self._open.callback(self._taps.close)
        own = [
            f"link set sw address {_colons(mac_of(self.hosts))} mtu {self.mtu} up",
            f"addr add {_SWITCH_ADDRESS}/16 dev sw",
            "link set lo up",
        ]
        _batch(self._switch, "ip", own)
        for host in range(self.hosts):
            address = _colons(mac_of(host))
            _batch(self._paths[host], "ip", [f"link set {self.interface(host)} address {address}"])
            self._configure(host)
            self._shape(host, self.rate, "add")

    def _configure(self, host: int) -> None:
        name = self.interface(host)
        prefix = 24 if self.switches.several else 16
        lines = [
            "link set lo up",
            f"addr add {self.address(host)}/{prefix} dev {name}",
            f"link set {name} mtu {self.mtu} up",
        ]
        if self.switches.several:
            lines.append(f"route add {_NET}.0.0/16 dev {name}")
        _batch(self._paths[host], "ip", lines)

    def _shape(self, host: int, rate: float, verb: str) -> None:
        shape = _bucket(rate)
        if self._taps is None:
            _batch(self._switch, "tc", [f"qdisc {verb} dev p{host} {shape}"])
        else:
            self._taps.order(f"rate {host} {rate}")
        _batch(self._paths[host], "tc", [f"qdisc {verb} dev {self.interface(host)} {shape}"])

    def _plug(self, host: int, there: bool) -> None:
        if self._taps is not None:
            self._taps.order(f"{'restore' if there else 'cut'} {host}")
            return
        _batch(self._switch, "ip", [" ".join(_port(host, there))])


def _port(host: int, there: bool) -> list[str]:
    # Off the bridge, not disabled on it: a port whose carrier is up is enabled again by the
    # kernel with the next change of the device, the one that disabled it included.
    return ["link", "set", f"p{host}", *(("master", "sw") if there else ("nomaster",))]


def _in(namespace: str, *words: str) -> list[str]:
    return ["nsenter", f"--net={namespace}", *words]


def _bucket(rate: float) -> str:
    """The token bucket of one direction of a link, in the words of ``tc``."""
    # 64 KiB lets one segmentation-offload packet through whole; above that, 2 ms of rate.
    burst = max(64 << 10, int(rate / 8 * 0.002))
    return f"root tbf rate {rate:.0f}bit burst {burst} latency 100ms"


def _colons(mac: str) -> str:
    return ":".join(mac[i : i + 2] for i in range(0, len(mac), 2))


def _batch(namespace: str, tool: str, lines: list[str]) -> None:
    """Run ``ip`` or ``tc`` with a batch of commands inside a namespace."""
    done = subprocess.run(
        _in(namespace, tool, "-batch", "-"),
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise UsageError(
            f"{tool} refused one of {lines}: {done.stderr.strip() or done.stdout.strip()}"
        )
