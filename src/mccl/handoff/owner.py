"""Rule O3: who may encode on PyTorch's stream right now."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mccl.errors import UsageError
from mccl.handoff.backward import ending_backward, inside_backward


class StreamOwner:
    """Lets one thread at a time own the stream, a burst of collectives long.

    A burst begins with a lease while none is outstanding and ends when the last one has
    been given back. During it the stream belongs to the thread that first issued or waited,
    and to autograd's threads while they run a backward pass (which the owner sits out).
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: threading.Thread | None = None
        self._outstanding = 0
        self._finalising = threading.local()

    def begin(self) -> None:
        """A lease is made on this thread. Raises ``UsageError`` when the stream is another's."""
        self.check()
        with self._lock:
            self._outstanding += 1

    def end(self) -> None:
        """A lease was given back, on any thread."""
        with self._lock:
            self._outstanding -= 1
            if self._outstanding == 0:
                self._owner = None

    def check(self) -> None:
        """Raise ``UsageError`` unless this thread may encode on the stream."""
        if inside_backward() or ending_backward() or getattr(self._finalising, "yes", False):
            return
        me = threading.current_thread()
        with self._lock:
            if self._owner is None or self._owner is me or not self._owner.is_alive():
                self._owner = me
                return
            owner = self._owner.name
        raise UsageError(
            f"thread {me.name!r} touches PyTorch's MPS stream while {owner!r} has collectives in "
            "flight on it (O3): issue and wait for collectives of MPS tensors on one thread, "
            "the one that runs the model"
        )

    @contextmanager
    def finalising_backward(self) -> Iterator[None]:
        """Callbacks at the end of a backward pass run after the graph task has left the thread."""
        self._finalising.yes = True
        try:
            yield
        finally:
            self._finalising.yes = False
