"""Which ranks share a switch: the groups of the two-level algorithms, from ``MCCL_GROUPS``.

All ranks must come to the same groups. They do: the setting is compared when ranks connect, and
``auto`` reads only what every rank has announced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from mccl.errors import UsageError

Groups: TypeAlias = tuple[tuple[int, ...], ...]

AUTO_FROM = 16
"""World size from which ``auto`` looks for subnets: smaller rings are not bound by latency."""


class Grouping:
    """The groups of one process group, found when first asked for.

    ``setting``: what ``Config.groups`` holds. ``global_ranks``: of the process group's members.
    Raises UsageError when explicit groups leave a member out.
    """

    def __init__(self, setting: str | int | Groups, global_ranks: Sequence[int]) -> None:
        self._size = len(global_ranks)
        self._automatic = setting == "auto" and self._size >= AUTO_FROM
        self._groups: Groups | None = None
        if isinstance(setting, int):
            self._groups = several(
                tuple(range(first, min(first + setting, self._size)))
                for first in range(0, self._size, setting)
            )
        elif isinstance(setting, tuple):
            self._groups = listed(setting, global_ranks)

    def get(self, subnets: Callable[[], Sequence[str | None]]) -> Groups | None:
        """Group ranks by group; None where all are one group or nothing is known.

        ``subnets``: called at most once, for ``auto``; the network of each member, None where
        unknown.
        """
        if self._automatic:
            self._groups = by_label(subnets())
            self._automatic = False
        return self._groups


def several(groups: Iterable[Sequence[int]]) -> Groups | None:
    """``groups`` without the empty ones; None where that leaves one, or only single ranks."""
    found = tuple(tuple(group) for group in groups if group)
    return found if len(found) > 1 and any(len(group) > 1 for group in found) else None


def listed(groups: Groups, global_ranks: Sequence[int]) -> Groups | None:
    """``groups`` of global ranks as group ranks, without those that are not members."""
    place = {rank: i for i, rank in enumerate(global_ranks)}
    missing = sorted(place.keys() - {rank for group in groups for rank in group})
    if missing:
        raise UsageError(
            f"MCCL_GROUPS names no group for rank{'s' if len(missing) > 1 else ''} "
            f"{', '.join(map(str, missing))}; expected every rank of the job in one group: add "
            "them, or give a group size, auto or off"
        )
    return several([place[r] for r in group if r in place] for group in groups)


def by_label(labels: Sequence[str | None]) -> Groups | None:
    """Ranks with one label are a group, in the order of their first ranks.

    None where a label is missing or a rank is alone with its own: such a network is not made of
    switches with several hosts each.
    """
    found: dict[str, list[int]] = {}
    for rank, label in enumerate(labels):
        if label is None:
            return None
        found.setdefault(label, []).append(rank)
    groups = several(found.values())
    return groups if groups and min(map(len, groups)) > 1 else None
