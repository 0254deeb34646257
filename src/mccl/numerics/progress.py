"""A progress bar on the standard error output; nothing where that is no terminal's business."""

from __future__ import annotations

import sys
import time

WIDTH = 24
EVERY = 0.2
"""Seconds between redraws."""


class Progress:
    """``[####----]  42% (130/310, 12 s left) layer``, redrawn in place."""

    def __init__(self, total: int, *, enabled: bool) -> None:
        self._total, self._enabled = total, enabled
        self._done, self._begin, self._drawn = 0, time.monotonic(), 0.0
        self._length = 0

    def step(self, what: str) -> None:
        """One more is being done: `what`."""
        now = time.monotonic()
        if self._enabled and now - self._drawn >= EVERY:
            self._drawn = now
            self._draw(what, now)
        self._done += 1

    def _draw(self, what: str, now: float) -> None:
        share = min(1.0, self._done / self._total) if self._total else 0.0
        bar = "#" * int(share * WIDTH)
        left = (now - self._begin) * (1 / share - 1) if share else 0.0
        text = f"[{bar:-<{WIDTH}}] {share:4.0%} ({self._done}/{self._total}, {left:.0f} s left) "
        text = (text + what)[:100]
        sys.stderr.write("\r" + text.ljust(self._length))
        sys.stderr.flush()
        self._length = len(text)

    def close(self) -> None:
        """Clear the line."""
        if self._enabled and self._length:
            sys.stderr.write("\r" + " " * self._length + "\r")
            sys.stderr.flush()
