"""One fault, at a chosen rank, collective and byte.

Theory of operation. ``Injector`` wraps the engine's two doors on the faulty rank: ``submit``,
to count collectives, and ``add_link``, to put a relay between the engine and every connection.
A relay forwards bytes both ways and counts those that leave. When the chosen collective begins
the injector arms itself; when the chosen byte of it passes, the fault fires. Connections are
taken after their handshake, which would refuse a relay in between.

Just before it fires, the fault leaves a marker file with the time, since a killed process
cannot tell; whoever runs the test asserts that the marker is there.
"""

from __future__ import annotations

import enum
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from mccl.engine import Channel, NativeComm
from mccl.errors import UsageError
from mccl.testing.relay import Relay


class Kind(enum.StrEnum):
    """What goes wrong."""

    KILL = "kill"
    """The process ends at once (SIGKILL)."""
    STOP = "stop"
    """The process stands still (SIGSTOP)."""
    SLOW = "slow"
    """At a byte: a link passes ``rate`` bytes a second. Else: the rank sleeps ``seconds``."""
    CUT = "cut"
    """Nothing passes between the two ranks any more, and nobody is told."""
    CUT_ONE_WAY = "cut-one-way"
    """Nothing passes from the faulty rank to its peer; the other way is open."""
    RESET = "reset"
    """Every connection between the two ranks is reset."""
    FLIP = "flip"
    """One bit of one byte is changed on its way out."""
    UNPLUG = "unplug"
    """The network passes nothing from or to the rank's host; the host still sees its link up."""


LINK_KINDS = frozenset({Kind.CUT, Kind.CUT_ONE_WAY, Kind.RESET, Kind.FLIP})
"""They happen to a link, so they need a byte to happen at."""


@dataclass(frozen=True)
class Fault:
    """One fault. Raises UsageError for one that cannot happen."""

    kind: Kind
    rank: int
    """Group rank on which it happens."""
    collective: int
    """Number of the collective on that rank, from 1."""
    byte: int | None = None
    """Byte of that collective on the link out, headers included; None: before it begins."""
    peer: int | None = None
    """Group rank at the other end; None: whichever link gets to the byte first."""
    bit: int = 0
    rate: float = 1e6
    """Bytes a second (slow, at a byte)."""
    seconds: float = 1.0
    """Sleep (slow, before a collective)."""

    def __post_init__(self) -> None:
        if self.collective < 1 or (self.byte is not None and self.byte < 0):
            raise UsageError("a fault happens at collective 1 or later and at byte 0 or later")
        if self.kind in LINK_KINDS and self.byte is None:
            raise UsageError(f"{self.kind} happens to a link; say at which byte")
        if not 0 <= self.bit < 8:
            raise UsageError(f"bit {self.bit} is not in a byte; expected 0 to 7")


class Injector:
    """Lets ``fault`` happen in this process while the context is open, if this is its rank.

    Open it before the group is made. ``marker`` is the file that tells that it fired. ``unplug``
    takes this process's host off the network.

    Raises:
        UsageError: the fault unplugs a host, and there is no ``unplug``.
    """

    def __init__(
        self,
        fault: Fault,
        rank: int,
        marker: Path,
        unplug: Callable[[], object] | None = None,
    ) -> None:
        if fault.kind is Kind.UNPLUG and unplug is None:
            raise UsageError(f"{fault.kind} happens to a host; say how: Injector(…, unplug=…)")
        self._unplug = unplug
        self._fault = fault
        self._mine = fault.rank == rank
        self._marker = marker
        self._lock = threading.RLock()
        self._begun = 0
        self._armed = False
        self._fired = False
        self._slowed = False
        self._relays: list[Relay] = []
        self._submit = NativeComm.submit
        self._add_link = NativeComm.add_link

    def __enter__(self) -> Injector:
        if self._mine:
            injector = self

            def submit(comm: NativeComm, *args: Any, **options: Any) -> Any:
                injector._collective_begins()
                return injector._submit(comm, *args, **options)

            def add_link(comm: NativeComm, peer: int, channel: Channel, fds: Sequence[int]) -> None:
                injector._add_link(comm, peer, channel, injector._between(peer, channel, fds))

            setattr(NativeComm, "submit", submit)  # noqa: B010 - mypy forbids the plain form
            setattr(NativeComm, "add_link", add_link)  # noqa: B010
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        setattr(NativeComm, "submit", self._submit)  # noqa: B010
        setattr(NativeComm, "add_link", self._add_link)  # noqa: B010

    @property
    def fired(self) -> bool:
        """Whether it happened (in this process)."""
        return self._fired

    # ---- triggers -------------------------------------------------------------------------

    def _collective_begins(self) -> None:
        with self._lock:
            self._begun += 1
            if self._begun != self._fault.collective:
                return
            if self._fault.byte is not None:
                for relay in self._relays:
                    relay.mark()
                self._armed = True
                return
        self._fire(None)

    def _between(self, peer: int, channel: Channel, fds: Sequence[int]) -> list[int]:
        if self._fault.byte is None:
            return list(fds)
        relays = [Relay(fd, peer, channel, self._leaving) for fd in fds]
        with self._lock:
            self._relays += relays
        return [relay.engine_fd for relay in relays]

    def _leaving(self, relay: Relay, begin: int, data: bytes) -> bytes:
        """See ``relay.Leaving``."""
        fault = self._fault
        with self._lock:
            due = (
                self._armed
                and not self._fired
                and relay.channel is Channel.COLLECTIVE_TX
                and fault.peer in (None, relay.peer)
                and fault.byte is not None
                and begin <= fault.byte < begin + len(data)
            )
            if due:
                self._fired = True
        if not due:
            if self._slowed and relay.channel is Channel.COLLECTIVE_TX:
                time.sleep(len(data) / fault.rate)
            return data
        assert fault.byte is not None
        at = fault.byte - begin
        if fault.kind is Kind.FLIP:
            self._mark(relay)
            return data[:at] + bytes([data[at] ^ 1 << fault.bit]) + data[at + 1 :]
        relay.pass_on(data[:at])
        self._fire(relay)
        return data[at:]

    # ---- firing ---------------------------------------------------------------------------

    def _mark(self, relay: Relay | None) -> None:
        peer = -1 if relay is None else relay.peer
        part = self._marker.with_suffix(".part")
        part.write_text(f"{time.time()} {peer}\n")
        part.replace(self._marker)

    def _fire(self, relay: Relay | None) -> None:
        self._mark(relay)
        self._fired = True
        kind = self._fault.kind
        if kind is Kind.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind is Kind.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        elif kind is Kind.UNPLUG:
            assert self._unplug is not None
            self._unplug()
        elif relay is None:
            time.sleep(self._fault.seconds)
        elif kind is Kind.SLOW:
            self._slowed = True
        else:
            with self._lock:
                between = [other for other in self._relays if other.peer == relay.peer]
            for other in between:
                if kind is Kind.RESET:
                    other.reset()
                else:
                    other.cut(both_ways=kind is Kind.CUT)


@dataclass(frozen=True)
class Marker:
    """What a fault left when it fired."""

    time: float
    """Seconds since the Unix epoch."""
    peer: int | None
    """The rank at the other end of the link it happened to."""


def read_marker(path: Path) -> Marker | None:
    """The marker at ``path``; None when the fault did not fire."""
    if not path.exists():
        return None
    moment, peer = path.read_text().split()
    return Marker(float(moment), int(peer) if int(peer) >= 0 else None)
