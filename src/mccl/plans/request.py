"""What is asked of a collective: the sizes and shapes from which plans are built."""

from __future__ import annotations

from dataclasses import dataclass

from mccl.plans.emit import Sizes


@dataclass(frozen=True, slots=True)
class Request:
    """What one rank asks for, beyond world and rank. Each builder reads what it needs.

    ``sizes``: the element count (all-reduce, broadcast, reduce), elements a rank
    (reduce-scatter, all-gather, gather, scatter) or elements sent to each rank
    (all-to-all, with ``recv_sizes`` for the other way); one number when all are equal.
    ``list_input`` and ``list_output``: the pieces are separate buffers.
    ``groups``: ranks that share a fast network (a switch), for algorithms of two levels.
    """

    sizes: Sizes = 0
    recv_sizes: Sizes | None = None
    root: int = 0
    list_input: bool = False
    list_output: bool = False
    groups: tuple[tuple[int, ...], ...] | None = None

    @property
    def count(self) -> int:
        """``sizes`` where it must be one number. ValueError otherwise."""
        if not isinstance(self.sizes, int):
            raise ValueError(f"expected one element count, got {self.sizes!r}")
        return self.sizes
