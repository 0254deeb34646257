"""The one thread that completes futures.

Theory of operation. The engine's threads know neither Python nor futures. A lease whose
future someone waits on is *watched* here: one daemon thread a process sleeps in the
engine until some operation completes, without the GIL, and then lets every watched lease
settle itself (copy results back, complete its futures). No wake-up can be lost: a lease is
added first and polled second, so an operation that completes before it was added is seen
by that poll, and one that completes after it moves the engine's cursor.

The thread starts with the first watched lease, sleeps on a condition while nothing is
watched, and is forgotten in a forked child (the child's own first lease starts another).
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from typing import Protocol

from mccl.engine import wait_completion

_SLICE_US = 100_000
"""Longest sleep inside the engine: how long the interpreter's exit may wait for the thread."""


class Settles(Protocol):
    """Something with an end that can be looked for."""

    def settle(self) -> bool:
        """True once ended. Called from any thread, any number of times; never raises or blocks."""


class CompletionQueue:
    """Settles what it watches soon after the engine completed it."""

    def __init__(self, wait: Callable[[int, int], int] = wait_completion) -> None:
        self._wait = wait
        self._reset()

    def _reset(self) -> None:
        self._wake = threading.Condition()
        self._watched: dict[int, Settles] = {}
        self._thread: threading.Thread | None = None
        self._closing = False

    def watch(self, item: Settles) -> None:
        """Keep ``item`` alive until it settles, and settle it when the engine is done."""
        with self._wake:
            self._watched[id(item)] = item
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="mccl-completion", daemon=True
                )
                self._thread.start()
        if item.settle():
            self._forget(item)
            return
        with self._wake:
            self._wake.notify()

    def close(self) -> None:
        """Stop the thread and wait for it, so that none of it runs during interpreter exit."""
        with self._wake:
            self._closing = True
            thread, self._thread = self._thread, None
            self._wake.notify()
        if thread is not None:
            thread.join(timeout=10 * _SLICE_US / 1e6)

    def watched(self) -> int:
        """How many items have not settled yet."""
        with self._wake:
            return len(self._watched)

    def _forget(self, item: Settles) -> None:
        with self._wake:
            self._watched.pop(id(item), None)

    def _run(self) -> None:
        cursor = 0
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._watched or self._closing)
                if self._closing:
                    return
            cursor = self._wait(cursor, _SLICE_US)
            with self._wake:
                items = list(self._watched.values())
            for item in items:
                if item.settle():
                    self._forget(item)
            del items


_queue = CompletionQueue()
atexit.register(_queue.close)
os.register_at_fork(after_in_child=_queue._reset)


def shared_queue() -> CompletionQueue:
    """The process's queue."""
    return _queue
