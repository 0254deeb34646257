"""A few log lines a while, however often something happens."""

from __future__ import annotations

import time


class Throttle:
    """Lets ``lines`` messages pass every ``seconds``; the first of the next period counts the rest.

    Not thread-safe: each belongs to one thread.
    """

    def __init__(self, *, lines: int, seconds: float) -> None:
        self._lines = lines
        self._seconds = seconds
        self._start = -float("inf")
        self._passed = 0
        self._suppressed = 0

    def allow(self, message: str, now: float | None = None) -> list[str]:
        """The lines to write now: none, the message, or a count of those left out and it."""
        now = time.monotonic() if now is None else now
        result: list[str] = []
        if now - self._start >= self._seconds:
            if self._suppressed:
                result.append(f"{self._suppressed} more lines like these were left out")
            self._start, self._passed, self._suppressed = now, 0, 0
        if self._passed < self._lines:
            self._passed += 1
            result.append(message)
        else:
            self._suppressed += 1
        return result
