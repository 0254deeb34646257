"""Shorthand the algorithms share: cutting a payload into pieces, and adding steps.

Steps that would move no elements are left out. Both ends of a connection know every
size, so both leave out the same ones and the FIFO order on the connection still matches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from mccl.plans.plan import Dep, DepKind, PlanBuilder, Region, Step, StepKind

Number: TypeAlias = int | None
"""A step's number, or None where the step was left out because it moves nothing."""

Sizes: TypeAlias = int | Sequence[int]
"""Elements a rank: one number when it is the same for all, else one number a rank."""


def split(count: int, parts: int) -> tuple[int, ...]:
    """``count`` elements in ``parts`` pieces whose sizes differ by at most one."""
    if count < 0:
        raise ValueError(f"count must not be negative, got {count}")
    base, extra = divmod(count, parts)
    return (base + 1,) * extra + (base,) * (parts - extra)


def per_rank(sizes: Sizes, world: int) -> tuple[int, ...]:
    """``sizes`` spelled out, one a rank. ValueError when they do not fit ``world``."""
    spelled = (sizes,) * world if isinstance(sizes, int) else tuple(sizes)
    if len(spelled) != world:
        raise ValueError(f"expected one size for each of {world} ranks, got {len(spelled)} sizes")
    if any(size < 0 for size in spelled):
        raise ValueError(f"sizes must not be negative, got {spelled}")
    return spelled


def pieces(sizes: Sequence[int], buffer: int = 0, *, separate: bool = False) -> tuple[Region, ...]:
    """Where each rank's piece lies: end to end in ``buffer``, or, when ``separate``,
    one buffer each from ``buffer`` on."""
    if separate:
        return tuple(Region(buffer + i, 0, size) for i, size in enumerate(sizes))
    regions = []
    offset = 0
    for size in sizes:
        regions.append(Region(buffer, offset, size))
        offset += size
    return tuple(regions)


def extents(sizes: Sequence[int], *, separate: bool = False) -> tuple[int, ...]:
    """Element counts of the external buffers that ``pieces`` refers to."""
    return tuple(sizes) if separate else (sum(sizes),)


def _deps(stream: Iterable[Number], full: Iterable[Number]) -> tuple[Dep, ...]:
    waits = [Dep(s, DepKind.STREAM) for s in stream if s is not None] if stream else []
    if full:
        waits += [Dep(s, DepKind.FULL) for s in full if s is not None]
    return tuple(waits)


class Emitter(PlanBuilder):
    """A plan builder that speaks in verbs.

    Every verb returns the number of its step, or None when it moves no elements.
    ``stream`` and ``full`` are the steps to wait for; None among them is ignored.
    """

    def send(
        self,
        peer: int,
        src: Region,
        *,
        stream: Iterable[Number] = (),
        full: Iterable[Number] = (),
    ) -> Number:
        """``src`` goes to ``peer``."""
        if src.count == 0:
            return None
        return self.add(Step(StepKind.SEND, peer, None, src, _deps(stream, full)))

    def recv(
        self,
        peer: int,
        dst: Region,
        *,
        stream: Iterable[Number] = (),
        full: Iterable[Number] = (),
    ) -> Number:
        """``dst`` comes from ``peer``."""
        if dst.count == 0:
            return None
        return self.add(Step(StepKind.RECV, peer, dst, None, _deps(stream, full)))

    def recv_reduce(
        self,
        peer: int,
        dst: Region,
        src: Region,
        *,
        stream: Iterable[Number] = (),
        full: Iterable[Number] = (),
        final: bool = False,
        incoming_first: bool = False,
    ) -> Number:
        """``dst = src ⊕ incoming``, or ``incoming ⊕ src``."""
        if dst.count == 0:
            return None
        return self.add(
            Step(
                StepKind.RECV_REDUCE,
                peer,
                dst,
                src,
                _deps(stream, full),
                final,
                incoming_first,
            )
        )

    def copy(
        self,
        dst: Region,
        src: Region,
        *,
        stream: Iterable[Number] = (),
        full: Iterable[Number] = (),
        final: bool = False,
    ) -> Number:
        """``dst = src``."""
        if dst.count == 0:
            return None
        return self.add(Step(StepKind.COPY, -1, dst, src, _deps(stream, full), final))

    def reduce(
        self,
        dst: Region,
        src: Region,
        *,
        stream: Iterable[Number] = (),
        full: Iterable[Number] = (),
        final: bool = False,
    ) -> Number:
        """``dst = dst ⊕ src``."""
        if dst.count == 0:
            return None
        return self.add(Step(StepKind.REDUCE, -1, dst, src, _deps(stream, full), final))
