"""Where in the user's program each operation was called, kept only on request.

Collectives carry a number in their record's ``tag``, which is opaque to the engine. A message's
tag is the user's, so messages are matched by the order of their calls.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

Frame = dict[str, str | int]
"""``name``, ``filename`` and ``line``, as PyTorch's tools read them."""

_Place = tuple[CodeType, int | None]

DEPTH = 32
"""Frames kept of one call, innermost first."""

_OWN = (str(Path(__file__).resolve().parents[1]), "torch/distributed/", "torch/utils/_contextlib")


class Stacks:
    """The stacks of the newest ``capacity`` collectives and as many messages of one group."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._lock = threading.Lock()
        self._collectives: OrderedDict[int, list[_Place]] = OrderedDict()
        self._messages: OrderedDict[int, list[_Place]] = OrderedDict()
        self._last = 0

    def collective(self) -> int:
        """Keep the caller's stack; returns the tag to submit the collective with."""
        return self._keep(self._collectives)

    def message(self) -> None:
        """Keep the caller's stack for the next message."""
        self._keep(self._messages)

    def _keep(self, where: OrderedDict[int, list[_Place]]) -> int:
        frames = _frames()
        with self._lock:
            self._last += 1
            where[self._last] = frames
            if len(where) > self._capacity:
                where.popitem(last=False)
            return self._last

    def of_collective(self, tag: int) -> list[Frame]:
        """The stack kept under ``tag``; empty when it is not known any more."""
        with self._lock:
            return _named(self._collectives.get(tag, []))

    def of_messages(self, count: int) -> Sequence[list[Frame]]:
        """The stacks of the newest ``count`` messages, oldest first, empty where unknown."""
        with self._lock:
            known = list(self._messages.values())[-count:] if count else []
        return [*([] for _ in range(count - len(known))), *map(_named, known)]


def _named(places: Sequence[_Place]) -> list[Frame]:
    # Done when somebody reads them, not in every call.
    return [
        {"name": code.co_qualname, "filename": code.co_filename, "line": line or 0}
        for code, line in places
    ]


def _frames() -> list[_Place]:
    found: list[_Place] = []
    frame = sys._getframe(2)
    while frame is not None and len(found) < DEPTH:
        code = frame.f_code
        if found or not any(part in code.co_filename for part in _OWN):
            found.append((code, frame.f_lineno))
        above = frame.f_back
        if above is None:
            break
        frame = above
    return found
