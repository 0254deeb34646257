"""Ticket words: 64-bit counters in pinned host memory, shared by streams and the engine."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

import torch

from mccl.engine import Ticket, word_ticket

_SPACING = 64
"""A cache line each, so that polling one word does not slow the writer of another."""
_BLOCK = 256


class Word:
    """One counter. ``address`` is the same for the host and the device."""

    __slots__ = ("_value", "address", "ticket")

    def __init__(self, address: int) -> None:
        self.address = address
        self.ticket: Ticket = word_ticket(address)
        self._value = ctypes.c_uint64.from_address(address)

    def read(self) -> int:
        """The value now."""
        return self._value.value

    def raise_to(self, value: int) -> None:
        """Store ``value`` unless the word is beyond it already."""
        if self._value.value < value:
            self._value.value = value


class Words:
    """Makes words out of pinned blocks, which live as long as this object. Any thread."""

    def __init__(self, pinned: Callable[[int], torch.Tensor]) -> None:
        self._pinned = pinned
        self._lock = threading.Lock()
        self._blocks: list[torch.Tensor] = []
        self._spare: list[int] = []

    def make(self) -> Word:
        """A word at value 0 that nobody else has."""
        with self._lock:
            if not self._spare:
                block = self._pinned(_SPACING * _BLOCK)
                self._blocks.append(block)
                base = block.data_ptr()
                self._spare = [base + _SPACING * i for i in range(_BLOCK)]
            return Word(self._spare.pop())
