"""Which of our addresses talks to which of a peer's.

Pure: two address records in, one list of candidate pairs a rail out, best first. A host may
have several addresses on an interface and several interfaces; two hosts that each pick "their"
address alone pick wrongly in pairs, so every rank announces all of them with their subnets and
the connecting side picks.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from mccl.communicator.interfaces import Address
from mccl.communicator.records import PeerRecord, Rail
from mccl.errors import ConnectError


@dataclass(frozen=True, slots=True)
class Route:
    """One address pair: from ``local`` (of ``interface``) to ``remote`` at ``port``."""

    interface: str
    local: Address
    remote: Address
    port: int
    same_subnet: bool

    def __str__(self) -> str:
        return f"{self.local.ip} ({self.interface}) to {self.remote.ip} port {self.port}"


def choose_routes(mine: PeerRecord, theirs: PeerRecord) -> list[list[Route]]:
    """Candidates for every rail, best first; as many rails as both sides have.

    Rails on a common subnet are paired first, the rest in their order. Raises ConnectError
    naming both sides' addresses when no pair can work.
    """
    rails: list[list[Route]] = []
    free = list(range(len(theirs.rails)))
    pending: list[Rail] = []
    by_rail: dict[int, list[Route]] = {}
    same_machine = mine.machine == theirs.machine
    for index, rail in enumerate(mine.rails):
        paired = _best_partner(rail, theirs.rails, free, same_machine)
        if paired is None:
            pending.append(rail)
            continue
        free.remove(paired)
        by_rail[index] = _candidates(rail, theirs.rails[paired], same_machine)
    for index, rail in enumerate(mine.rails):
        if index in by_rail:
            rails.append(by_rail[index])
        elif free:
            candidates = _candidates(rail, theirs.rails[free[0]], same_machine)
            if candidates:
                free.pop(0)
                rails.append(candidates)
    if not rails:
        raise ConnectError(
            f"rank {theirs.global_rank} cannot be reached: this rank has {_show(mine)} and rank "
            f"{theirs.global_rank} announces {_show(theirs)}, and no pair of these fits. Set "
            "MCCL_SOCKET_IFNAME on both hosts to interfaces of one network, and MASTER_ADDR to an "
            "address that every host reaches (not 127.0.0.1 when there is more than one host).",
            peer=theirs.global_rank,
            host=theirs.label,
            phase="connect",
        )
    return rails


def _best_partner(
    rail: Rail, others: Sequence[Rail], free: Sequence[int], same_machine: bool
) -> int | None:
    for index in free:
        candidates = _candidates(rail, others[index], same_machine)
        if candidates and candidates[0].same_subnet:
            return index
    return None


def _candidates(mine: Rail, theirs: Rail, same_machine: bool) -> list[Route]:
    scored: list[tuple[int, Route]] = []
    for local, _ in mine.addresses:
        for remote, port in theirs.addresses:
            score = _score(local, remote, same_machine)
            if score is None:
                continue
            if remote.link_local:
                # Their scope is an index on their host; ours is what connect() needs.
                remote = Address(remote.ip, remote.prefix, local.scope)
            same = score in (0, 1, 4)
            scored.append((score, Route(mine.name, local, remote, port, same)))
    return [route for _, route in sorted(scored, key=lambda item: item[0])]


def _score(local: Address, remote: Address, same_machine: bool) -> int | None:
    """Lower is better: same subnet, then routable, then link-local; None: cannot work."""
    if local.family != remote.family:
        return None
    six = int(":" in local.ip)
    if local.loopback or remote.loopback:
        # 127.0.0.1 on another host is another host's.
        return six if same_machine and local.loopback and remote.loopback else None
    same = ipaddress.ip_address(remote.ip) in local.network
    if local.link_local or remote.link_local:
        return 4 if same and local.link_local and remote.link_local else None
    return six if same else 2 + six


def _show(record: PeerRecord) -> str:
    return "; ".join(
        f"{rail.name} ({', '.join(str(a) for a, _ in rail.addresses)})" for rail in record.rails
    )
