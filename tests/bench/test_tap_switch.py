"""The user-space switch: who gets a frame, when, and what is dropped."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

import pytest

from mccl.bench import cluster as cluster_module
from mccl.bench.cluster import Cluster
from mccl.bench.emulate import ClusterLauncher
from mccl.bench.launch import RankContext
from mccl.bench.tap_switch import VIRTIO_HEADER, Port, Switch, wire_bytes

MACS = [bytes([2, 0, 0, 0, 0, n]) for n in range(3)]


def frame(target: bytes, size: int = 1000, segment: int = 0) -> bytes:
    header = bytearray(VIRTIO_HEADER)
    header[4:6] = segment.to_bytes(2, "little")
    return bytes(header) + target + bytes(size - len(target))


def switch(latency: float = 0.0, rate: float = 0.0) -> Switch:
    return Switch([Port(-1, rate, rate) for _ in MACS], MACS, latency)


def waiting(built: Switch) -> list[list[float]]:
    return [[when for when, _ in port.queue] for port in built.ports]


def test_a_frame_goes_to_its_address_after_the_latency() -> None:
    built = switch(latency=0.5)
    built.accept(0, frame(MACS[2]), now=10.0)
    assert waiting(built) == [[], [], [10.5]]


def test_a_broadcast_goes_to_everybody_else() -> None:
    built = switch()
    built.accept(1, frame(b"\xff" * 6), now=1.0)
    assert waiting(built) == [[1.0], [], [1.0]]


def test_a_rate_spaces_frames_and_a_full_queue_drops() -> None:
    built = switch(latency=1.0, rate=80_000.0)  # 1000 bytes take 0.1 s
    for _ in range(5):
        built.accept(0, frame(MACS[1]), now=0.0)
    assert waiting(built)[1] == pytest.approx([1.1, 1.2])


def test_an_offloaded_frame_counts_the_headers_of_its_segments() -> None:
    assert wire_bytes(frame(MACS[0], 1000)) == 1000
    assert wire_bytes(frame(MACS[0], 66 + 3 * 1448, segment=1448)) == 3 * (66 + 1448)


def test_frames_between_groups_share_both_uplinks_and_others_do_not() -> None:
    macs = [bytes([2, 0, 0, 0, 0, n]) for n in range(5)]
    places = [0, 0, 1, 1, None]
    built = Switch([Port(-1, 0.0, 0.0) for _ in macs], macs, 50.0, places, uplink=80_000.0)
    built.accept(0, frame(macs[1]), now=0.0)
    assert waiting(built)[1] == [50.0], "inside a group no uplink is in the way"
    # Two frames up group 0 (0.1 s each), one from the core: they meet in the way down to group 1.
    built.accept(0, frame(macs[2]), now=0.0)
    built.accept(1, frame(macs[3]), now=0.0)
    built.accept(4, frame(macs[2]), now=0.05)
    assert waiting(built)[2:] == [[], [], []]
    assert built.deliver(0.0) == pytest.approx(0.1)
    assert built.deliver(0.1) == pytest.approx(0.05)
    for now in (0.15, 0.2, 0.25, 0.35):
        built.deliver(now)
    assert waiting(built)[2] == pytest.approx([0.15 + 50.0, 0.25 + 50.0])
    assert waiting(built)[3] == pytest.approx([0.35 + 50.0])
    built.accept(2, frame(macs[4]), now=1.0)
    built.deliver(1.1)
    assert waiting(built)[4] == pytest.approx([51.1]), "up to the core only"


def test_a_full_uplink_drops() -> None:
    macs = MACS[:2]
    built = Switch([Port(-1, 0.0, 0.0) for _ in macs], macs, 0.0, [0, 1], uplink=80_000.0)
    for _ in range(5):
        built.accept(0, frame(macs[1]), now=0.0)
    assert len(built.up[0].queue) == 2


def test_orders_cut_slow_and_restore() -> None:
    built = switch(rate=8e9)
    built.order("cut 1")
    built.accept(0, frame(MACS[1]), now=0.0)
    built.accept(1, frame(MACS[0]), now=0.0)
    assert waiting(built) == [[], [], []]
    built.order("rate 2 8000")
    built.accept(0, frame(MACS[2]), now=0.0)
    assert waiting(built)[2] == pytest.approx([1.0])
    built.order("restore 1")
    built.accept(0, frame(MACS[1]), now=0.0)
    assert len(built.ports[1].queue) == 1
    with pytest.raises(ValueError, match="explode"):
        built.order("explode 1")


def test_due_frames_are_written_and_the_next_is_announced() -> None:
    reader, writer = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with reader, writer:
        built = Switch([Port(writer.fileno(), 0.0, 0.0)], [MACS[0]], 0.0)
        built.ports[0].queue.extend([(1.0, b"first"), (3.0, b"second")])
        assert built.deliver(1.5) == pytest.approx(1.5)
        assert os.read(reader.fileno(), 100) == b"first"
        assert built.deliver(3.0) is None


def round_trip(context: RankContext, options: dict[str, Any]) -> float:
    times = []
    if context.rank == 0:
        with socket.create_server((context.address, 0)) as server:
            context.gather([context.address, server.getsockname()[1]])
            connection, _ = server.accept()
    else:
        address = context.gather(None)[0]
        connection = socket.create_connection(tuple(address))
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(10):
            start = time.perf_counter()
            if context.rank == 0:
                connection.sendall(b"x")
            assert connection.recv(1) == b"x"
            if context.rank == 1:
                connection.sendall(b"x")
            times.append(time.perf_counter() - start)
        context.gather("done")
    return min(times)


@pytest.mark.root
@pytest.mark.timeout(60)
@pytest.mark.skipif(cluster_module.missing() is not None, reason=str(cluster_module.missing()))
def test_no_round_trip_is_shorter_than_twice_the_latency() -> None:
    with Cluster(2, 1e8, latency=0.02) as cluster:
        results = ClusterLauncher(cluster).run(round_trip, {}, 2, 40)
    assert results is not None
    assert results[0] >= 0.04
