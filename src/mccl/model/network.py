"""The network that plans are simulated on: hosts, their links, switches, and what disturbs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mccl.model.hockney import PAPER_GOODPUT, PAPER_HOP_S, Hockney

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Network:
    """Hosts 0 to ``hosts - 1``, one rank each, on one or more switches.

    ``link``: payload bytes a second of a host's link, each way. ``hop``: seconds from a byte
    leaving a host to its use on the next. ``message``: seconds that each message keeps its link
    busy on either end, beyond its bytes. ``gamma``: seconds to add a byte.

    ``switches``: the hosts of each switch; empty: one switch. Traffic between switches shares
    the uplink of either: the hosts' links together divided by ``oversubscription``; it takes
    ``uplink_hop`` seconds longer.

    ``speed``: share of its link that a slow host has (straggler); ``late``: seconds after the
    others that a host starts. ``background``: share of every link taken by other traffic, and
    ``uplink_background`` of every uplink.
    """

    hosts: int
    link: float = PAPER_GOODPUT
    hop: float = PAPER_HOP_S
    message: float = 0.0
    gamma: float = 0.0
    switches: Groups = ()
    oversubscription: float = 1.0
    uplink_hop: float = 0.0
    speed: Mapping[int, float] = field(default_factory=dict)
    late: Mapping[int, float] = field(default_factory=dict)
    background: float = 0.0
    uplink_background: float = 0.0

    def __post_init__(self) -> None:
        if self.hosts < 1 or self.link <= 0 or self.oversubscription <= 0:
            raise ValueError("hosts, link and oversubscription must be above 0")
        if min(self.hop, self.message, self.gamma, self.uplink_hop) < 0:
            raise ValueError("hop, message, gamma and uplink_hop must not be negative")
        for share in (self.background, self.uplink_background):
            if not 0 <= share < 1:
                raise ValueError(f"a background share must be in [0, 1), got {share}")
        for host, share in self.speed.items():
            if share <= 0:
                raise ValueError(f"speed of host {host} must be above 0, got {share}")
        for host in (*self.speed, *self.late):
            if not 0 <= host < self.hosts:
                raise ValueError(f"host {host} is not one of 0 to {self.hosts - 1}")
        members = sorted(host for switch in self.switches for host in switch)
        if self.switches and members != list(range(self.hosts)):
            raise ValueError(f"switches must hold each of the hosts 0 to {self.hosts - 1} once")

    @classmethod
    def of(cls, fit: Hockney, hosts: int) -> Network:
        """One switch with fitted parameters."""
        return cls(hosts, link=fit.bandwidth, hop=fit.alpha, gamma=fit.gamma)

    @property
    def hockney(self) -> Hockney:
        """The closed forms' parameters, without switches and disturbances."""
        return Hockney(self.hop + self.message, 1 / self.rate(-1), self.gamma)

    @property
    def even(self) -> bool:
        """Whether no host differs from another."""
        return not self.speed and not self.late

    def rate(self, host: int) -> float:
        """Bytes a second that ``host`` can use of its link (-1: a host like most)."""
        return self.link * self.speed.get(host, 1.0) * (1 - self.background)

    def uplink(self, members: int) -> float:
        """Bytes a second, each way, between a switch of ``members`` hosts and the rest."""
        return self.link * members / self.oversubscription * (1 - self.uplink_background)

    def switch_of(self) -> list[int]:
        """Number of each host's switch."""
        places = [0] * self.hosts
        for number, switch in enumerate(self.switches):
            for host in switch:
                places[host] = number
        return places


def blocks(hosts: int, size: int) -> Groups:
    """``hosts`` in groups of neighbours, of ``size`` or one fewer: as many groups as needed,
    as even as possible. ValueError when ``size`` is below 1."""
    if size < 1:
        raise ValueError(f"a group needs at least one member, got {size}")
    count = -(-hosts // size)
    base, extra = divmod(hosts, count)
    bounds = [number * base + min(number, extra) for number in range(count + 1)]
    return tuple(tuple(range(low, high)) for low, high in pairwise(bounds))


def equal(groups: Sequence[Sequence[int]]) -> bool:
    """Whether all groups have the same size."""
    return len({len(group) for group in groups}) == 1
