"""A switch in user space: frames between TAP devices, later by a set latency. A script of its own.

``python tap_switch.py JOB`` with JOB in JSON: ``ports`` (descriptors of TAP devices, one a port,
already opened), ``macs`` (the address behind each port), ``rates`` (bits a second towards each
port, 0: unlimited), ``latency_s``, ``places`` (each port's group, null: none) and ``uplink`` (bits
a second between a group and the rest, each way, 0: unlimited). Orders come on standard input, one
a line: ``cut PORT``, ``rate PORT BITS``, ``restore PORT``; end of input ends the switch.

Frames are exchanged with their virtio header, so one that carries 64 KiB by segmentation offload
moves as one, and a few thousand reads a second serve two dozen ports. A port's rate makes frames
queue; what would wait longer than ``QUEUE_S`` is dropped, as a real switch does. Between groups a
frame queues for the uplink of the sender's group, that of the receiver's, and then for the port.
"""

from __future__ import annotations

import collections
import errno
import json
import os
import select
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

QUEUE_S = 0.1
VIRTIO_HEADER = 10
FRAME_BYTES = VIRTIO_HEADER + 65536 + 64
_BROADCAST_BIT = 1
_SEGMENT_OVERHEAD = 66
"""Ethernet, IPv4 and TCP headers with time stamps, which every segment of a large frame repeats."""


_Queue: TypeAlias = "collections.deque[tuple[float, bytes, int]]"


@dataclass
class Port:
    """One TAP device and the frames on their way to it, in order of arrival time."""

    descriptor: int
    rate: float
    full_rate: float
    cut: bool = False
    free_at: float = 0.0
    queue: collections.deque[tuple[float, bytes]] = field(default_factory=collections.deque)


@dataclass
class Uplink:
    """One direction of what joins a group to the rest; frames with the port they are for."""

    rate: float
    free_at: float = 0.0
    queue: collections.deque[tuple[float, bytes, int]] = field(default_factory=collections.deque)


def wire_bytes(frame: bytes) -> int:
    """Bytes that a frame takes on the wire once cut into segments (virtio header: gso_size)."""
    size = len(frame) - VIRTIO_HEADER
    segment = int.from_bytes(frame[4:6], sys.byteorder)
    if segment == 0 or size <= segment:
        return size
    return size + (size - _SEGMENT_OVERHEAD - 1) // segment * _SEGMENT_OVERHEAD


class Switch:
    """Moves frames; ``due`` decides when each leaves."""

    def __init__(
        self,
        ports: list[Port],
        macs: list[bytes],
        latency: float,
        places: Sequence[int | None] = (),
        uplink: float = 0.0,
    ) -> None:
        self.ports = ports
        self._by_mac = {mac: number for number, mac in enumerate(macs)}
        self._latency = latency
        self._places = list(places) or [None] * len(ports)
        groups = {place for place in self._places if place is not None} if uplink else set()
        self.up = {group: Uplink(uplink) for group in sorted(groups)}
        self.down = {group: Uplink(uplink) for group in sorted(groups)}

    def accept(self, source: int, frame: bytes, now: float) -> None:
        """Queue a frame that came from port ``source``."""
        if self.ports[source].cut:
            return
        target = frame[VIRTIO_HEADER : VIRTIO_HEADER + 6]
        known = self._by_mac.get(target)
        if known is not None:
            self._route(source, known, frame, now)
        elif target[0] & _BROADCAST_BIT:
            for number in range(len(self.ports)):
                if number != source:
                    self._route(source, number, frame, now)

    def _route(self, source: int, target: int, frame: bytes, now: float) -> None:
        here, there = self._places[source], self._places[target]
        if here == there or here not in self.up:
            self._descend(target, frame, now, there if here != there else None)
            return
        out = _passed(self.up[here], frame, now)
        if out is not None:
            self.up[here].queue.append((out, frame, target))

    def _descend(self, target: int, frame: bytes, now: float, group: int | None) -> None:
        """Towards a port, through the uplink of its ``group`` if that is not None."""
        if group not in self.down:
            self._queue(self.ports[target], frame, now)
            return
        out = _passed(self.down[group], frame, now)
        if out is not None:
            self.down[group].queue.append((out, frame, target))

    def _queue(self, port: Port, frame: bytes, now: float) -> None:
        out = None if port.cut else _passed(port, frame, now)
        if out is not None:
            port.queue.append((out + self._latency, frame))

    def _advance(self, now: float) -> float | None:
        """Let frames leave uplinks; when the next one will, None when none waits."""
        waiting = [link.queue for link in self.up.values()]
        # By time over all links, as they meet in the next queue.
        while (first := _first(waiting)) and first[0][0] <= now:
            out, frame, target = first.popleft()
            self._descend(target, frame, out, self._places[target])
        arriving = [link.queue for link in self.down.values()]
        while (first := _first(arriving)) and first[0][0] <= now:
            out, frame, target = first.popleft()
            self._queue(self.ports[target], frame, out)
        first = _first([*waiting, *arriving])
        return first[0][0] if first else None

    def deliver(self, now: float) -> float | None:
        """Write the frames that are due; seconds until the next one, None when none waits."""
        leaving = self._advance(now) if self.up else None
        soonest = None if leaving is None else max(0.0, leaving - now)
        for port in self.ports:
            while port.queue and port.queue[0][0] <= now:
                try:
                    os.write(port.descriptor, port.queue.popleft()[1])
                except OSError as error:
                    # Its host takes none now, or its interface is down: lost, as on a real link.
                    if error.errno not in (errno.EAGAIN, errno.EIO):
                        raise
            if port.queue:
                wait = max(0.0, port.queue[0][0] - now)
                soonest = wait if soonest is None else min(soonest, wait)
        return soonest

    def order(self, line: str) -> None:
        """Obey one line of standard input."""
        verb, number, *rest = line.split()
        port = self.ports[int(number)]
        if verb == "cut":
            port.cut = True
        elif verb == "rate":
            port.rate = float(rest[0])
        elif verb == "restore":
            port.cut, port.rate = False, port.full_rate
        else:
            raise ValueError(f"order {line!r} unknown: cut, rate or restore")


def _passed(link: Port | Uplink, frame: bytes, now: float) -> float | None:
    """When a frame that comes now is through the link; None where its queue is full."""
    start = max(now, link.free_at)
    if start - now > QUEUE_S:
        return None
    if link.rate > 0:
        link.free_at = start + wire_bytes(frame) * 8 / link.rate
        start = link.free_at
    return start


def _first(queues: Sequence[_Queue]) -> _Queue | None:
    """The queue whose first frame is the earliest, None where all are empty."""
    return min(filter(None, queues), key=lambda queue: queue[0][0], default=None)


def main() -> None:
    """Run until standard input ends."""
    job = json.loads(sys.argv[1])
    ports = [Port(fd, rate, rate) for fd, rate in zip(job["ports"], job["rates"], strict=True)]
    macs = [bytes.fromhex(mac) for mac in job["macs"]]
    switch = Switch(ports, macs, job["latency_s"], job["places"], job["uplink"])
    poller = select.poll()
    numbers = {port.descriptor: number for number, port in enumerate(ports)}
    for descriptor in (*numbers, 0):
        os.set_blocking(descriptor, False)
        poller.register(descriptor, select.POLLIN)
    orders = b""
    while True:
        soonest = switch.deliver(time.monotonic())
        for descriptor, _ in poller.poll(None if soonest is None else soonest * 1e3):
            if descriptor == 0:
                chunk = os.read(0, 65536)
                if not chunk:
                    return
                *lines, orders = (orders + chunk).split(b"\n")
                for line in lines:
                    switch.order(line.decode())
                continue
            for _ in range(16):
                try:
                    frame = os.read(descriptor, FRAME_BYTES)
                except BlockingIOError:
                    break
                switch.accept(numbers[descriptor], frame, time.monotonic())


if __name__ == "__main__":
    main()
