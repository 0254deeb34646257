"""Reusable buffers for memory that the engine cannot address."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_SMALLEST = 4096


@dataclass(frozen=True, slots=True)
class Staged(Generic[T]):
    """One buffer, ``nbytes`` long (a power of two)."""

    memory: T
    nbytes: int


class StagingPool(Generic[T]):
    """Buffers by size class. All methods may be called from any thread.

    The caller gives a buffer back only when the engine is done with it and every GPU command
    that touches it is issued. On one stream that is enough, the next user's commands come
    later; with several, ``usable`` says whether the GPU has run them.
    """

    def __init__(
        self, make: Callable[[int], T], usable: Callable[[T], bool] = lambda memory: True
    ) -> None:
        self._make = make
        self._usable = usable
        self._lock = threading.Lock()
        self._free: dict[int, list[Staged[T]]] = defaultdict(list)
        self._all: list[Staged[T]] = []

    def take(self, nbytes: int) -> Staged[T]:
        """A buffer of at least ``nbytes`` bytes."""
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        with self._lock:
            free = self._free[size]
            for index, staged in enumerate(free):
                if self._usable(staged.memory):
                    return free.pop(index)
        staged = Staged(self._make(size), size)
        with self._lock:
            self._all.append(staged)
        return staged

    def give_back(self, staged: Staged[T]) -> None:
        """Offer a buffer to the next user."""
        with self._lock:
            self._free[staged.nbytes].append(staged)

    def drain(self) -> list[T]:
        """All buffers, to be destroyed; the pool is empty afterwards."""
        with self._lock:
            memory = [staged.memory for staged in self._all]
            self._free.clear()
            self._all.clear()
        return memory
