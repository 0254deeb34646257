"""A switch in user space: frames between TAP devices, later by a set latency. A script of its own.

``python tap_switch.py JOB`` with JOB in JSON: ``ports`` (descriptors of TAP devices, one a port,
already opened), ``macs`` (the address behind each port), ``rates`` (bits a second towards each
port, 0: unlimited), ``latency_s``. Orders come on standard input, one a line: ``cut PORT``,
``rate PORT BITS``, ``restore PORT``; end of input ends the switch.

Frames are exchanged with their virtio header, so one that carries 64 KiB by segmentation offload
moves as one, and a few thousand reads a second serve two dozen ports. A port's rate makes frames
queue; what would wait longer than ``QUEUE_S`` is dropped, as a real switch does.
"""

from __future__ import annotations

import collections
import errno
import json
import os
import select
import sys
import time
from dataclasses import dataclass, field

QUEUE_S = 0.1
VIRTIO_HEADER = 10
FRAME_BYTES = VIRTIO_HEADER + 65536 + 64
_BROADCAST_BIT = 1
_SEGMENT_OVERHEAD = 66
"""Ethernet, IPv4 and TCP headers with time stamps, which every segment of a large frame repeats."""


@dataclass
class Port:
    """One TAP device and the frames on their way to it, in order of arrival time."""

    descriptor: int
    rate: float
    full_rate: float
    cut: bool = False
    free_at: float = 0.0
    queue: collections.deque[tuple[float, bytes]] = field(default_factory=collections.deque)


def wire_bytes(frame: bytes) -> int:
    """Bytes that a frame takes on the wire once cut into segments (virtio header: gso_size)."""
    size = len(frame) - VIRTIO_HEADER
    segment = int.from_bytes(frame[4:6], sys.byteorder)
    if segment == 0 or size <= segment:
        return size
    return size + (size - _SEGMENT_OVERHEAD - 1) // segment * _SEGMENT_OVERHEAD


class Switch:
    """Moves frames; ``due`` decides when each leaves."""

    def __init__(self, ports: list[Port], macs: list[bytes], latency: float) -> None:
        self.ports = ports
        self._by_mac = {mac: number for number, mac in enumerate(macs)}
        self._latency = latency

    def accept(self, source: int, frame: bytes, now: float) -> None:
        """Queue a frame that came from port ``source``."""
        if self.ports[source].cut:
            return
        target = frame[VIRTIO_HEADER : VIRTIO_HEADER + 6]
        known = self._by_mac.get(target)
        if known is not None:
            self._queue(self.ports[known], frame, now)
        elif target[0] & _BROADCAST_BIT:
            for number, port in enumerate(self.ports):
                if number != source:
                    self._queue(port, frame, now)

    def _queue(self, port: Port, frame: bytes, now: float) -> None:
        if port.cut:
            return
        start = max(now, port.free_at)
        if start - now > QUEUE_S:
            return
        if port.rate > 0:
            port.free_at = start + wire_bytes(frame) * 8 / port.rate
            start = port.free_at
        port.queue.append((start + self._latency, frame))

    def deliver(self, now: float) -> float | None:
        """Write the frames that are due; seconds until the next one, None when none waits."""
        soonest = None
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


def main() -> None:
    """Run until standard input ends."""
    job = json.loads(sys.argv[1])
    ports = [Port(fd, rate, rate) for fd, rate in zip(job["ports"], job["rates"], strict=True)]
    switch = Switch(ports, [bytes.fromhex(mac) for mac in job["macs"]], job["latency_s"])
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
