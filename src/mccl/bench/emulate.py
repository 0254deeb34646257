"""``mccl bench cluster``: any other benchmark on emulated hosts, one rank each."""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore

from mccl.bench import dispatch
from mccl.bench.cluster import Cluster
from mccl.bench.launch import Launcher, Placement, Worker, interface_environment, run_placed
from mccl.bench.switches import Switches
from mccl.bench.units import parse_ints, parse_rate
from mccl.errors import UsageError

_ACTIONS = ("cut", "slow", "restore")


@dataclass(frozen=True)
class Event:
    """Something that happens to a link ``at`` seconds after the ranks were started."""

    at: float
    action: str
    host: int
    rate: float | None = None

    def apply(self, cluster: Cluster) -> None:
        """Do it."""
        if self.action == "cut":
            cluster.cut(self.host)
        elif self.action == "slow" and self.rate is not None:
            cluster.slow(self.host, self.rate)
        else:
            cluster.restore(self.host)


def parse_event(text: str) -> Event:
    """``"5 slow 3 10mbit"`` or ``"8 restore 3"``.

    Raises:
        UsageError: the words make no event.
    """
    words = text.split()
    well_formed = len(words) >= 3 and words[1] in _ACTIONS and words[2].isdigit()
    if not well_formed or len(words) != (4 if words[1] == "slow" else 3):
        raise UsageError(
            f"event {text!r} not understood: write 'SECONDS ACTION HOST', ACTION one of "
            f"{', '.join(_ACTIONS)}, and a rate after 'slow'"
        )
    try:
        at = float(words[0])
    except ValueError as error:
        raise UsageError(f"event {text!r} starts with no number of seconds") from error
    return Event(at, words[1], int(words[2]), parse_rate(words[3]) if len(words) == 4 else None)


class ClusterLauncher:
    """Runs one rank on every host of a cluster."""

    def __init__(self, cluster: Cluster, events: Sequence[Event] = ()) -> None:
        for event in events:
            if not 0 <= event.host < cluster.hosts:
                raise UsageError(f"event names host {event.host}; hosts are 0..{cluster.hosts - 1}")
        self._cluster = cluster
        self._events = sorted(events, key=lambda event: event.at)
        self.worlds: tuple[int, ...] | None = (cluster.hosts,)
        late = f", {cluster.latency * 1e3:g} ms apart" if cluster.latency else ""
        switches = cluster.switches
        self.title = (
            f"{cluster.hosts} emulated hosts{switches.title}, "
            f"{cluster.rate / 1e6:g} Mbit/s links{late}"
        )
        self.facts: dict[str, Any] = {
            "hosts": cluster.hosts,
            "rate_bits": cluster.rate,
            "mtu": cluster.mtu,
            "latency_ms": cluster.latency * 1e3,
            "switches": switches.members if switches.several else (),
            "uplink_bits": switches.uplink,
            "events": [f"{e.at:g} s: {e.action} host {e.host}" for e in self._events],
        }

    def run(
        self, worker: Worker, options: dict[str, Any], world: int, timeout: float
    ) -> list[Any] | None:
        """See ``Launcher.run``; ``world`` must be the number of hosts."""
        cluster = self._cluster
        if world != cluster.hosts:
            raise UsageError(f"{world} ranks asked for on {cluster.hosts} hosts, one rank each")
        places = [
            Placement(
                cluster.address(host),
                cluster.interface(host),
                interface_environment(cluster.interface(host)),
                cluster.namespace(host),
            )
            for host in range(world)
        ]
        listener = cluster.listen()
        with cluster.inside_switch():
            store = TCPStore(
                cluster.switch_address,
                listener.getsockname()[1],
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=timeout),
                master_listen_fd=listener.detach(),
            )
        with self._happening():
            return run_placed(worker, options, places, store, cluster.switch_address, timeout)

    @contextlib.contextmanager
    def _happening(self) -> Iterator[None]:
        """Events happen on a thread while the block runs; afterwards every link is whole."""
        if not self._events:
            yield
            return
        over = threading.Event()
        start = time.monotonic()

        def play() -> None:
            for event in self._events:
                if over.wait(max(0.0, start + event.at - time.monotonic())):
                    return
                event.apply(self._cluster)

        thread = threading.Thread(target=play, name="cluster-events")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            for host in {event.host for event in self._events}:
                self._cluster.restore(host)


def run(args: argparse.Namespace, launcher: Launcher) -> int:
    """Run the benchmark after ``--`` on a cluster of each size; the worst exit code."""
    words = [word for word in args.benchmark if word != "--"]
    if not words:
        raise UsageError("say which benchmark to run: mccl bench cluster --hosts 8 -- all_reduce")
    inner = dispatch.parser().parse_args(words)
    if inner.bench_command.module in (__name__, "mccl.bench.report", "mccl.bench.peers"):
        raise UsageError(f"{inner.bench_command.name} does not run on a cluster")
    events = [parse_event(text) for text in args.event]
    codes = []
    for hosts in parse_ints(args.hosts):
        uplink = parse_rate(args.uplink) if args.uplink else 0.0
        switches = Switches(hosts, args.groups, uplink, args.numbering == "dealt")
        rate, latency = parse_rate(args.rate), args.latency / 1e3
        with Cluster(hosts, rate, args.mtu, latency, switches) as cluster:
            print(f"# {hosts} hosts; look inside: nsenter --net={cluster.namespace(0)}", flush=True)
            codes.append(dispatch.run(inner, ClusterLauncher(cluster, events)))
    return max(codes)
