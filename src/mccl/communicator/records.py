"""What a rank announces about itself in the store: JSON, checked field by field when read."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mccl.communicator.handshake import VERSION as HANDSHAKE_VERSION
from mccl.communicator.interfaces import Address
from mccl.config import Config
from mccl.errors import InternalError, MismatchError

PROTOCOL = 1
"""Version of what the engine writes on a link."""


@dataclass(frozen=True, slots=True)
class Rail:
    """An interface of the announcing host with its listening (address, port) pairs."""

    name: str
    speed: int | None
    addresses: tuple[tuple[Address, int], ...]


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """One rank's announcement. ``rank`` is its group rank."""

    rank: int
    global_rank: int
    host: str
    machine: str
    pid: int
    device: str
    rails: tuple[Rail, ...]
    settings: Mapping[str, object]

    @property
    def label(self) -> str:
        """As in error messages: "mac-17 (10.0.0.17) pid 4242"."""
        addresses = [a.ip for rail in self.rails for a, _ in rail.addresses]
        return f"{self.host} ({addresses[0] if addresses else 'no address'}) pid {self.pid}"

    @property
    def subnet(self) -> str | None:
        """The network of the first address that others can route to, such as "10.0.3.0/24"."""
        for rail in self.rails:
            for address, _ in rail.addresses:
                if not address.link_local and not address.loopback:
                    return str(address.network)
        return None

    def to_json(self) -> str:
        return json.dumps(
            {
                "rank": self.rank,
                "global_rank": self.global_rank,
                "host": self.host,
                "machine": self.machine,
                "pid": self.pid,
                "device": self.device,
                "settings": dict(self.settings),
                "rails": [
                    {
                        "name": rail.name,
                        "speed": rail.speed,
                        "addresses": [[a.ip, a.prefix, a.scope, p] for a, p in rail.addresses],
                    }
                    for rail in self.rails
                ],
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> PeerRecord:
        """Raises InternalError when the store holds something else."""
        try:
            data = json.loads(text)
            rails = tuple(
                Rail(
                    str(rail["name"]),
                    None if rail["speed"] is None else int(rail["speed"]),
                    tuple(
                        (Address(str(ip), int(prefix), int(scope)), int(port))
                        for ip, prefix, scope, port in rail["addresses"]
                    ),
                )
                for rail in data["rails"]
            )
            for rail in rails:
                for address, _ in rail.addresses:
                    address.network  # noqa: B018 - raises ValueError for what is no address
            return cls(
                rank=int(data["rank"]),
                global_rank=int(data["global_rank"]),
                host=str(data["host"]),
                machine=str(data["machine"]),
                pid=int(data["pid"]),
                device=str(data["device"]),
                rails=rails,
                settings=dict(data["settings"]),
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InternalError(
                f"the store holds an address record that cannot be read ({error!r}): "
                f"{text[:200]!r}. Expected one written by this version of mccl: install the same "
                "version on every host."
            ) from error


def shared_settings(config: Config) -> dict[str, object]:
    """What must be equal on all ranks of a group, by the name a user would look for."""
    return {
        "protocol": f"{PROTOCOL}.{HANDSHAKE_VERSION}",
        "MCCL_CHECKSUM": config.checksum,
        "MCCL_WIRE_DTYPE": config.wire_dtype,
        "MCCL_ALGO": config.algo,
        "MCCL_SMALL_MSG_THRESHOLD": config.small_msg_threshold,
        "MCCL_GROUPS": json.dumps(config.groups),
        "MCCL_TUNING": None if config.tuning is None else config.tuning.digest,
    }


_ADVICE = {
    "protocol": "install the same version of mccl on every host",
    "MCCL_TUNING": "copy one tuning file to every host and name it on every rank (the values "
    "shown are digests of its text)",
}


def check_settings(mine: PeerRecord, theirs: PeerRecord) -> None:
    """Raises MismatchError naming both sides and values."""
    for name in sorted({*mine.settings, *theirs.settings}):
        here, there = mine.settings.get(name), theirs.settings.get(name)
        if here != there:
            advice = _ADVICE.get(name, f"set {name} to one value on every rank")
            raise MismatchError(
                f"{name} differs: {here!r} on rank {mine.global_rank} ({mine.host}), {there!r} on "
                f"rank {theirs.global_rank} ({theirs.host}); expected the same on all: {advice}.",
                rank=mine.global_rank,
                peer=theirs.global_rank,
                host=theirs.label,
                phase="connect",
            )


def machine_id() -> str:
    """Equal in two processes exactly when they share a loopback interface."""
    parts = [socket.gethostname()]
    if sys.platform == "linux":
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(os.stat("/proc/self/ns/net").st_ino))  # noqa: PTH116 - follows the link
    return "|".join(parts)
