"""The emulated cluster: shaped links, events, and nothing left, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mccl.bench import cluster as cluster_module
from mccl.bench.cluster import Cluster, inside
from mccl.bench.emulate import ClusterLauncher, Event, parse_event
from mccl.bench.goodput import Ring
from mccl.bench.launch import RankContext, RankFailedError
from mccl.bench.switches import Switches
from mccl.errors import UsageError

pytestmark = [
    pytest.mark.timeout(90),
    pytest.mark.root,
]
needs_root = pytest.mark.skipif(
    cluster_module.missing() is not None, reason=str(cluster_module.missing())
)


def where(context: RankContext, options: dict[str, Any]) -> list[Any]:
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return [context.address, context.interface, context.interface in links, links.count("\n")]


def stream(context: RankContext, options: dict[str, Any]) -> float:
    ring = Ring(context)
    ring.stream(options["nbytes"])
    taken = ring.stream(options["nbytes"], 2)
    ring.close()
    return float(sum(taken) / len(taken))


def stuck(context: RankContext, options: dict[str, Any]) -> None:
    ring = Ring(context)
    context.gather("connected")
    Path(options["folder"], str(context.rank)).write_text("connected")
    ring.stream(1 << 30)


def namespaces_held_by(pid: int) -> list[str]:
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = link.readlink()
        except OSError:
            continue  # the descriptor of the listing itself is gone by now
        if str(target).startswith("net:"):
            found.append(str(target))
    return found


def processes_in(namespaces: set[str]) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                inside = str((process / "ns" / "net").readlink())
            except OSError:
                continue  # it ended meanwhile
            if inside in namespaces:
                found.append(int(process.name))
    return found


@needs_root
def test_each_host_has_its_own_interface_and_two_clusters_coexist() -> None:
    with Cluster(3, 1e8) as first, Cluster(2, 1e8) as second:
        for cluster in (second, first):
            results = ClusterLauncher(cluster).run(where, {}, cluster.hosts, 40)
            assert results is not None
            assert [r[1] for r in results] == [f"e{i}" for i in range(cluster.hosts)]
            assert len({r[0] for r in results}) == cluster.hosts
            assert all(r[2] and r[3] == 2 for r in results), "a host sees lo and its own link only"


@needs_root
def test_links_carry_their_rate_and_no_more() -> None:
    with Cluster(2, 8e7) as cluster:
        nbytes = 2_000_000
        seconds = max(ClusterLauncher(cluster).run(stream, {"nbytes": nbytes}, 2, 60) or [])
        assert nbytes / seconds < 1e7, "faster than the link allows"
        assert nbytes / seconds > 2e6, "shaped far below its rate"


@needs_root
def test_a_cut_link_stops_traffic_and_is_whole_afterwards(tmp_path: Path) -> None:
    with Cluster(2, 1e8) as cluster:
        launcher = ClusterLauncher(cluster, [Event(0.0, "cut", 1)])
        with pytest.raises(RankFailedError, match=r"no result within 6 s|[Tt]imed ?out"):
            launcher.run(stuck, {"folder": str(tmp_path)}, 2, 6)
        results = ClusterLauncher(cluster).run(where, {}, 2, 40)
        assert results is not None


@needs_root
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_host_that_is_cut_hears_nothing_and_others_do(elsewhere: bool) -> None:
    with Cluster(3, 1e8) as cluster, contextlib.ExitStack() as opened:
        sockets = []
        for host in range(3):
            with inside(cluster.namespace(host)):
                made = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            made.bind((cluster.address(host), 9))
            made.settimeout(20)
            sockets.append(made)

        def heard(source: int, sink: int) -> bytes:
            sockets[source].sendto(b"word", (cluster.address(sink), 9))
            return sockets[sink].recv(10)

        assert heard(0, 1) == heard(1, 2) == heard(0, 2) == b"word"
        if elsewhere:
            subprocess.run(cluster.cutting(1), check=True)
        else:
            cluster.cut(1)
        sockets[1].sendto(b"lost", (cluster.address(2), 9))
        assert heard(0, 2) == b"word"
        sockets[1].settimeout(0.5)
        with pytest.raises(TimeoutError):
            heard(0, 1)
        sockets[1].settimeout(20)
        cluster.restore(1)
        assert heard(0, 1) == heard(1, 2) == b"word"


@needs_root
def test_namespaces_end_with_the_cluster() -> None:
    before = namespaces_held_by(os.getpid())
    with Cluster(2, 1e8):
        assert len(namespaces_held_by(os.getpid())) == len(before) + 3
    assert namespaces_held_by(os.getpid()) == before
    with pytest.raises(UsageError, match="refused"), Cluster(1, 1e8) as broken:
        cluster_module._batch(broken.namespace(0), "ip", ["link set nothing up"])
    assert namespaces_held_by(os.getpid()) == before


def subnet_rates(context: RankContext, options: dict[str, Any]) -> list[float]:
    """Bytes a second to the partner of each of the given pairings, all at once."""
    found = []
    for pairing in options["pairings"]:
        partner = pairing[context.rank]
        with socket.create_server((context.address, 0)) as server:
            addresses = context.gather([context.address, server.getsockname()[1]])
            out = socket.create_connection(tuple(addresses[partner]), timeout=30)
            into, _ = server.accept()
        with out, into:
            context.gather("connected")
            start = time.perf_counter()
            sender = threading.Thread(target=out.sendall, args=(bytes(options["nbytes"]),))
            sender.start()
            left = options["nbytes"]
            while left:
                left -= len(into.recv(min(left, 1 << 16)))
            found.append(options["nbytes"] / (time.perf_counter() - start))
            sender.join()
    return found


@needs_root
@pytest.mark.parametrize(("latency", "dealt"), [(0.0, False), (0.001, True)])
def test_an_uplink_is_shared_by_its_switch_and_local_traffic_is_not_slowed(
    latency: float, dealt: bool
) -> None:
    switches = Switches(4, 2, 2e7, dealt)
    near = {host: pair[1 - place] for pair in switches.members for place, host in enumerate(pair)}
    far = {a: b for pair in zip(*switches.members, strict=True) for a, b in (pair, pair[::-1])}
    options = {"nbytes": 2_000_000, "pairings": [near, far]}
    with Cluster(4, 1e8, latency=latency, switches=switches) as cluster:
        results = ClusterLauncher(cluster).run(subnet_rates, options, 4, 60)
    assert results is not None
    across = sum(rates[1] for rates in results) / 2
    assert across < 1.1 * 2e7 / 8, "a switch sent more than its uplink carries"
    assert min(rates[0] for rates in results) > max(rates[1] for rates in results)


def found_groups(context: RankContext, options: dict[str, Any]) -> Any:
    group: Any = context.group("mccl")
    return group._calls._groups()


@needs_root
def test_groups_are_found_by_the_subnets_of_the_switches() -> None:
    switches = Switches(16, 4, dealt=True)
    with Cluster(16, 1e9, switches=switches) as cluster:
        results = ClusterLauncher(cluster).run(found_groups, {}, 16, 80)
    assert results == [switches.members] * 16


def test_switches_share_the_hosts_evenly() -> None:
    assert Switches(7, 3).members == ((0, 1, 2), (3, 4), (5, 6))
    assert Switches(7, 3, dealt=True).members == ((0, 3, 6), (1, 4), (2, 5))
    for bad in ((4, 5, 0.0), (4, 0, 0.0), (4, 1, 1e6), (4, 2, 1.0), (600, 2, 0.0)):
        with pytest.raises(UsageError, match=r"group"):
            Switches(*bad)


CHILD = """
import sys
from mccl.bench.cluster import Cluster
from mccl.bench.emulate import ClusterLauncher
from mccl.bench.launch import ending_on_sigterm
from mccl.bench.switches import Switches
sys.path.insert(0, {folder!r})
from test_cluster_worker import stuck

if __name__ == "__main__":
    with ending_on_sigterm(), Cluster(2, 1e8, switches=Switches(2, 2, 1e7)) as cluster:
        ClusterLauncher(cluster).run(stuck, {{"folder": sys.argv[1]}}, 2, 80)
"""


@needs_root
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_however_it_ends(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "test_cluster_worker.py").write_text(
        "from pathlib import Path\nfrom mccl.bench.goodput import Ring\n"
        "def stuck(context, options):\n"
        "    ring = Ring(context)\n    context.gather('connected')\n"
        "    Path(options['folder'], str(context.rank)).write_text('connected')\n"
        "    ring.stream(1 << 34)\n"
    )
    script = tmp_path / "child.py"
    script.write_text(CHILD.format(folder=str(tmp_path)))
    source = str(Path(cluster_module.__file__).parents[2])
    paths = os.pathsep.join([source, str(tmp_path)])
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not all((tmp_path / str(rank)).exists() for rank in range(2)):
            assert process.poll() is None, "the run ended before its ranks were connected"
            assert time.monotonic() < deadline, "ranks did not connect"
            time.sleep(0.05)
        held = set(namespaces_held_by(process.pid))
        assert len(held) == 3
        assert processes_in(held)
        process.send_signal(how)
        process.wait(30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    deadline = time.monotonic() + 20
    while left := processes_in(held):
        assert time.monotonic() < deadline, f"processes {left} still hold the namespaces"
        time.sleep(0.05)


def test_events_are_read_or_refused() -> None:
    assert parse_event("5 slow 3 10mbit") == Event(5.0, "slow", 3, 1e7)
    assert parse_event("0.5 cut 0") == Event(0.5, "cut", 0)
    for text in ("cut 3", "5 break 3", "x cut 3", "5 slow 3", "5 cut 3 10mbit", "5 cut -1"):
        with pytest.raises(UsageError, match="event"):
            parse_event(text)


@needs_root
def test_impossible_clusters_are_refused() -> None:
    with pytest.raises(UsageError, match="hosts"):
        Cluster(0, 1e8)
    with pytest.raises(UsageError, match="MTU"):
        Cluster(2, 1e8, mtu=100)
    with Cluster(1, 1e8) as cluster, pytest.raises(UsageError, match="host 7"):
        ClusterLauncher(cluster, [Event(0, "cut", 7)])


def test_without_linux_or_root_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match=r"root|Linux"):
        Cluster(2, 1e8)
