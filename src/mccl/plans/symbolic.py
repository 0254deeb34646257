"""Symbolic values: what an element is, as an expression over the ranks' inputs.

A value is a pair (node, shift). Node ``leaf(rank, buffer)`` with shift s is element s of
that rank's input; ``combine`` joins two values. A run of elements whose values differ by
the shift alone is one interval, so a memory of millions of elements takes a few entries.
Nodes are interned: equal expressions have equal numbers, whatever rank computed them.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TypeAlias

UNWRITTEN = -1
"""Node of memory that nothing has written."""

Run: TypeAlias = tuple[int, int, int]
"""(elements, node, shift of the first)."""


class DoubledError(Exception):
    """A rank's contribution would be counted twice; ``args[0]`` is the set as a bit mask."""


class RefinishedError(Exception):
    """A value marked final is combined or marked final again."""


class Nodes:
    """The interned expressions, with what proofs ask of each."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, ...], int] = {}
        self.ranks: list[int] = []
        """Ranks whose inputs occur, as a bit mask."""
        self.buffer: list[int] = []
        """The input buffer of all leaves, or -1 when leaves differ."""
        self.aligned: list[bool] = []
        """Whether all leaves have the same shift."""
        self.final: list[bool] = []

    def _intern(
        self, key: tuple[int, ...], ranks: int, buffer: int, aligned: bool, final: bool
    ) -> int:
        number = len(self.ranks)
        self._numbers[key] = number
        self.ranks.append(ranks)
        self.buffer.append(buffer)
        self.aligned.append(aligned)
        self.final.append(final)
        return number

    def leaf(self, rank: int, buffer: int) -> int:
        """The input ``buffer`` of ``rank``."""
        key = (rank, buffer)
        number = self._numbers.get(key)
        return self._intern(key, 1 << rank, buffer, True, False) if number is None else number

    def combine(self, left: int, right: int, delta: int) -> int:
        """``left ⊕ right``, where right's shift is left's plus ``delta``.

        Raises DoubledError when both hold a contribution of one rank, RefinishedError when one is
        a final value already.
        """
        key = (left, right, delta)
        number = self._numbers.get(key)
        if number is not None:
            return number
        ranks = self.ranks
        if ranks[left] & ranks[right]:
            raise DoubledError(ranks[left] & ranks[right])
        if self.final[left] or self.final[right]:
            raise RefinishedError
        same = self.buffer[left] == self.buffer[right]
        return self._intern(
            key,
            ranks[left] | ranks[right],
            self.buffer[left] if same else -1,
            delta == 0 and self.aligned[left] and self.aligned[right],
            False,
        )

    def finish(self, node: int) -> int:
        """``node`` marked as the collective's result. Raises RefinishedError when it is already."""
        key = (node,)
        number = self._numbers.get(key)
        if number is not None:
            return number
        if self.final[node]:
            raise RefinishedError
        return self._intern(key, self.ranks[node], self.buffer[node], self.aligned[node], True)


class Memory:
    """One buffer: consecutive intervals, each a run of values."""

    __slots__ = ("_nodes", "_shifts", "_starts", "size")

    def __init__(self, size: int, node: int) -> None:
        self.size = size
        self._starts = [0] if size else []
        self._nodes = [node] if size else []
        self._shifts = [0] if size else []

    def _cut(self, at: int) -> int:
        """Index of the interval that begins at ``at``, made to begin there."""
        starts = self._starts
        index = bisect_left(starts, at)
        if index < len(starts) and starts[index] == at:
            return index
        if at < self.size:
            starts.insert(index, at)
            self._nodes.insert(index, self._nodes[index - 1])
            self._shifts.insert(index, self._shifts[index - 1] + at - starts[index - 1])
        return index

    def read(self, offset: int, count: int) -> list[Run]:
        """The runs of ``count`` elements from ``offset``."""
        end = offset + count
        first = self._cut(offset)
        last = self._cut(end)
        starts = self._starts
        if last == first + 1:
            return [(count, self._nodes[first], self._shifts[first])]
        bounds = [*starts[first:last], end]
        return [
            (bounds[k + 1] - bounds[k], self._nodes[first + k], self._shifts[first + k])
            for k in range(last - first)
        ]

    def write(self, offset: int, runs: list[Run]) -> None:
        """Store ``runs`` from ``offset`` on."""
        if len(runs) == 1:
            count, node, shift = runs[0]
            first = self._cut(offset)
            last = self._cut(offset + count)
            if last == first + 1:
                self._nodes[first] = node
                self._shifts[first] = shift
                return
        else:
            first = self._cut(offset)
            last = self._cut(offset + sum(run[0] for run in runs))
        starts = []
        for count, _, _ in runs:
            starts.append(offset)
            offset += count
        self._starts[first:last] = starts
        self._nodes[first:last] = [run[1] for run in runs]
        self._shifts[first:last] = [run[2] for run in runs]


def merged(runs: list[Run]) -> list[Run]:
    """``runs`` with neighbours joined where they continue one another."""
    joined: list[Run] = []
    for count, node, shift in runs:
        if joined:
            before, last_node, last_shift = joined[-1]
            if last_node == node and (node == UNWRITTEN or last_shift + before == shift):
                joined[-1] = (before + count, node, last_shift)
                continue
        joined.append((count, node, shift))
    return joined


def combined(nodes: Nodes, left: list[Run], right: list[Run]) -> list[Run]:
    """``left ⊕ right`` element by element; raises what ``Nodes.combine`` raises."""
    if len(left) == 1 and len(right) == 1:
        count, a, s = left[0]
        _, b, t = right[0]
        return [(count, nodes.combine(a, b, t - s), s)]
    result: list[Run] = []
    i = j = used_left = used_right = 0
    while i < len(left):
        (count_l, a, s), (count_r, b, t) = left[i], right[j]
        s, t = s + used_left, t + used_right
        count = min(count_l - used_left, count_r - used_right)
        result.append((count, nodes.combine(a, b, t - s), s))
        used_left += count
        used_right += count
        if used_left == count_l:
            i, used_left = i + 1, 0
        if used_right == count_r:
            j, used_right = j + 1, 0
    return result
