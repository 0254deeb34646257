"""Stand-ins of the communicator's tests."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from mccl.config import Config, InterfaceRule
from mccl.engine import Channel, Failure, NativeError


class FakeNative:
    """Keeps links and the first error, as the engine does, and moves nothing."""

    def __init__(self, rank: int, size: int, **settings: Any) -> None:
        self.rank, self.size, self.settings = rank, size, settings
        self.links: dict[tuple[int, int], tuple[int, ...]] = {}
        self.labels: dict[int, str] = {}
        self.changed = threading.Condition()
        self.first: NativeError | None = None
        self.destroyed = False

    def set_peer_label(self, peer: int, text: str) -> None:
        self.labels[peer] = text

    def add_link(self, peer: int, channel: int, fds: Sequence[int]) -> None:
        with self.changed:
            if (peer, int(channel)) in self.links:  # a second control link does no harm
                assert channel == Channel.CONTROL
                for fd in fds:
                    os.close(fd)
                return
            self.links[(peer, int(channel))] = tuple(fds)
            self.changed.notify_all()

    def has_link(self, peer: int, channel: int) -> bool:
        return (peer, int(channel)) in self.links

    def wait_link(self, peer: int, channel: int, timeout: float = 10.0) -> tuple[int, ...]:
        with self.changed:
            found = self.changed.wait_for(lambda: self.has_link(peer, channel), timeout)
        assert found, f"no link {channel!r} to {peer} at {self.rank}"
        return self.links[(peer, int(channel))]

    def error(self) -> NativeError | None:
        return self.first

    def fail(self, error: NativeError) -> None:
        with self.changed:
            self.first = self.first or error
            self.changed.notify_all()

    def abort(self, reason: str) -> None:
        self.fail(NativeError(Failure.ABORTED, self.rank, self.rank, 255, 0, 0, "idle", reason))

    def destroy(self) -> None:
        self.destroyed = True
        for fds in self.links.values():
            for fd in fds:
                os.close(fd)
        self.links.clear()


def loopback(**settings: Any) -> Config:
    """Settings for tests on one host: loopback only, short limits."""
    settings.setdefault("socket_ifname", InterfaceRule(("lo", "lo0"), exact=True))
    settings.setdefault("connect_timeout", 10.0)
    return Config(**settings)
