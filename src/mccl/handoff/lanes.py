"""Consumer tickets: one lane an operation in flight.

A producer ticket can be shared by everything on a stream, because a stream runs in order.
Operations do not end in order: another group's, or a point-to-point message, may end long
before an older one. One shared consumer counter would then either let the GPU run ahead
of a result (raised past a value that is not done) or tie unrelated operations together
(raised only in order). So each operation in flight has a counter of its own, taken from a
pool and given back when the engine is done with it; values only grow, so a wait that is
still encoded for an older use of a lane stays satisfied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lane(Generic[T]):
    """A counter (``event``) and the value that the operation using it will raise it to."""

    __slots__ = ("event", "value")

    def __init__(self, event: T) -> None:
        self.event = event
        self.value = 0


class Lanes(Generic[T]):
    """Free lanes, and a way to make more."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._free: list[Lane[T]] = []
        self._all: list[Lane[T]] = []

    def take(self) -> Lane[T]:
        """A lane with a fresh value. Any thread."""
        with self._lock:
            lane = self._free.pop() if self._free else None
        if lane is None:
            lane = Lane(self._make())
            with self._lock:
                self._all.append(lane)
        lane.value += 1
        return lane

    def give_back(self, lane: Lane[T]) -> None:
        """The operation has ended (its value was raised) or was never submitted. Any thread."""
        with self._lock:
            self._free.append(lane)

    def in_use(self) -> int:
        """Lanes taken and not given back."""
        with self._lock:
            return len(self._all) - len(self._free)

    def drain(self) -> list[T]:
        """All counters, to be destroyed; the pool is empty afterwards."""
        with self._lock:
            events = [lane.event for lane in self._all]
            self._free.clear()
            self._all.clear()
        return events
