"""Latency plus bandwidth, on the back of an envelope: closed forms of the algorithms' times.

The cost of a message of n bytes is ``alpha + n beta`` (Hockney, Parallel Comput. 20, 1994),
and a byte that is added costs ``gamma``. The algorithms here *stream*: a rank forwards the
first byte of a piece as soon as it has been reduced, so latency and transfer of successive hops
overlap and a step of a pipeline costs the larger of the two, not their sum. This is what the
paper's own figures say: the sum would give 0.72 GB/s for 50 MB on 100 Macs where §7 predicts
1.23, and 0.8 GB/s for 16 MB on 24 Macs where §5.1 measured 1.21.

The forms are exact for a network of equal hosts on one switch; ``simulate`` does the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

PAPER_HOP_S = 306e-6
"""Fixed cost of a hop in the paper's model (§7)."""

PAPER_GOODPUT = 1.238e9
"""Bytes a second of tensor payload that a TCP socket delivers on 10 GbE, 9000-byte frames (§2)."""

PAPER_RTT_S = 0.59e-3
"""Measured round trip through the switch (§2)."""

PAPER_BUCKET = 25 << 20
"""Bytes of a gradient bucket, PyTorch's default ``bucket_cap_mb`` (MiB) (§2)."""

_HEADERS = 52
"""IPv4 20, TCP 20, timestamps option 12 bytes: inside the MTU (RFC 791, 9293, 7323)."""

_FRAMING = 38
"""Ethernet header 14, check sequence 4, preamble 8, gap 12 bytes: outside it (IEEE 802.3)."""


def goodput(bits_per_second: float, mtu: int = 9000) -> float:
    """Payload bytes a second of TCP on an Ethernet link: 1.238e9 for 10 Gb/s and 9000 bytes."""
    if bits_per_second <= 0 or mtu <= _HEADERS:
        raise ValueError(
            f"expected a rate above 0 and an MTU above {_HEADERS}, got {bits_per_second} and {mtu}"
        )
    return bits_per_second / 8 * (mtu - _HEADERS) / (mtu + _FRAMING)


def bus_bandwidth(world: int, nbytes: float, seconds: float) -> float:
    """Bus bandwidth of an all-reduce in bytes a second (nccl-tests, ``doc/PERFORMANCE.md``)."""
    return 2 * (world - 1) / world * nbytes / seconds if seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Hockney:
    """``alpha``: seconds a hop; ``beta``: seconds a byte on a link; ``gamma``: seconds a byte
    added. ValueError when one is negative or ``beta`` is 0."""

    alpha: float
    beta: float
    gamma: float = 0.0

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.beta <= 0 or self.gamma < 0:
            raise ValueError(f"expected alpha, gamma of at least 0 and beta above 0, got {self}")

    @property
    def bandwidth(self) -> float:
        """Bytes a second of a link."""
        return 1 / self.beta

    def ring(self, world: int, nbytes: float) -> float:
        """Seconds of a streaming ring all-reduce of ``nbytes``.

        Step s of a rank starts once its link is free (a piece's time after step s-1) and the
        first byte it forwards is there (a hop after step s-1), hence the larger of the two for
        each of ``2 (N-1) - 1`` steps, then the last piece's own time and hop. Where adding is the
        slowest, the link gains on it at each step, and sends the first result while it is added.
        """
        if world == 1:
            return 0.0
        piece = nbytes / world
        add, move = (self._step(piece, adds=adds) for adds in (True, False))
        tail = max(0.0, piece * self.beta - (world - 1) * (add - move))
        return (world - 1) * add + (world - 2) * move + self.alpha + tail

    def reduce_scatter(self, world: int, nbytes: float) -> float:
        """Seconds of a ring reduce-scatter of ``nbytes`` in all (every rank's pieces)."""
        return self._half(world, nbytes, adds=True)

    def all_gather(self, world: int, nbytes: float) -> float:
        """Seconds of a ring all-gather of ``nbytes`` in all (every rank's piece)."""
        return self._half(world, nbytes, adds=False)

    def recursive_doubling(self, world: int, nbytes: float) -> float:
        """Seconds of a recursive-doubling all-reduce: ``⌊log2 N⌋`` rounds of the whole payload,
        two more (at most) where ``N`` is no power of two."""
        if world == 1:
            return 0.0
        core = world.bit_length() - 1
        rounds = core + (2 if world != 1 << core else 0)
        return self.alpha + nbytes * self.beta + (rounds - 1) * self._step(nbytes, adds=True)

    def rabenseifner(self, world: int, nbytes: float) -> float:
        """Seconds of a halving-doubling all-reduce. Its rounds wait for each other in full."""
        if world == 1:
            return 0.0
        core = world.bit_length() - 1
        moved = 2 * (1 - 1 / (1 << core)) * nbytes
        fold = 2 * (self.alpha + nbytes * self.beta) if world != 1 << core else 0.0
        return 2 * core * self.alpha + moved * self.beta + fold

    def two_level(self, world: int, nbytes: float, group: int) -> float:
        """Seconds, at most, of a two-level ring in groups of ``group``: its three phases one
        after the other, where the plan lets the later ones start early."""
        groups = math.ceil(world / group)
        if groups == 1 or group == 1:
            return self.ring(world, nbytes)
        chunk = nbytes / group
        local = (group - 1) * (self._step(chunk, adds=True) + self._step(chunk, adds=False))
        unit = chunk / groups
        across = (groups - 1) * (self._step(unit, adds=True) + self._step(unit, adds=False))
        return local + across + self.alpha + unit * self.beta

    def crossover_world(self, nbytes: float) -> float:
        """World size beyond which a flat ring waits for hops longer than it moves bytes:
        ``alpha = beta n / N``. Infinite without latency."""
        return nbytes * self.beta / self.alpha if self.alpha else math.inf

    def crossover_bytes(self, world: int) -> float:
        """Bytes of a bucket from which a flat ring of ``world`` ranks is bandwidth-bound."""
        return self.alpha * world / self.beta

    def _step(self, piece: float, *, adds: bool) -> float:
        return max(self.alpha, piece * self.beta, piece * self.gamma if adds else 0.0)

    def _half(self, world: int, nbytes: float, *, adds: bool) -> float:
        if world == 1:
            return 0.0
        piece = nbytes / world
        return (
            (world - 2) * self._step(piece, adds=adds)
            + self.alpha
            + piece * max(self.beta, self.gamma if adds else 0.0)
        )


PAPER = Hockney(alpha=PAPER_HOP_S, beta=1 / PAPER_GOODPUT)
"""The paper's stated parameters (§7)."""
