"""A tuning file: for a world size and its groups, which algorithm carries which size.

``mccl plan --tune`` writes it from a model of the network and ``MCCL_TUNING`` names it. Every
rank reads the same text (its digest is compared when ranks connect) and looks only at what all
ranks know alike, so all choose alike. A world or grouping that the file does not name keeps the
default table: what was worked out for one ring says little about another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from mccl.plans.choose import BUILDERS, GROUPED, ONE_ROUNDING, Rule, Table, default_table
from mccl.plans.plan import Collective
from mccl.plans.two_level import check_groups

SCHEMA = "mccl-tuning/1"

TUNED: tuple[Collective, ...] = tuple(c for c, names in BUILDERS.items() if len(names) > 1)
"""Collectives that have a choice."""

Groups: TypeAlias = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """Rules for ``world`` ranks in ``groups`` (None: no groups are known).

    ``rules``: by collective, smallest sizes first; only the last has no bound.
    """

    world: int
    groups: Groups | None
    rules: Mapping[Collective, Sequence[Rule]]


class Tuning:
    """The entries of one file."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = MappingProxyType({(e.world, e.groups): e for e in entries})

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All of them, in the order of the file."""
        return tuple(self._entries.values())

    def knows(self, world: int) -> bool:
        """Whether any entry is for ``world`` ranks, so that their groups matter for every size."""
        return any(entry.world == world for entry in self.entries)

    def table(self, world: int, groups: Groups | None, small_threshold: int) -> Table | None:
        """The table in force for these ranks, None where the file has none for them.

        What the model does not weigh stays as by default: collectives without a choice, and
        float16 and bfloat16 above ``small_threshold`` in small worlds, which round once.
        """
        entry = self._entries.get((world, groups))
        if entry is None:
            return None
        table = {**default_table(small_threshold), **entry.rules}
        if groups is None:
            for collective in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
                if collective in entry.rules:
                    rules = entry.rules[collective]
                    table[collective] = (*_up_to(small_threshold, rules), ONE_ROUNDING, *rules)
        return table


def _up_to(bound: int, rules: Sequence[Rule]) -> list[Rule]:
    """The rules for sizes of at most ``bound`` bytes, the last of them cut there."""
    found = []
    for rule in rules:
        last = rule.max_bytes is None or rule.max_bytes >= bound
        found.append(replace(rule, max_bytes=bound) if last else rule)
        if last:
            break
    return found


def dump(entries: Iterable[Entry], network: Mapping[str, object]) -> str:
    """The text of a tuning file. ``network``: what it was made from, for people."""
    tables = [
        {
            "world": entry.world,
            "groups": entry.groups,
            "rules": {
                collective.name.lower(): [[rule.algorithm, rule.max_bytes] for rule in rules]
                for collective, rules in entry.rules.items()
            },
        }
        for entry in entries
    ]
    lines = ",\n  ".join(json.dumps(table) for table in tables)
    head = f'{{"schema": "{SCHEMA}",\n "network": {json.dumps(dict(network))},\n "tables": ['
    return f"{head}\n  {lines}\n ]}}\n"


def parse(text: str) -> Tuning:
    """What ``dump`` wrote. ValueError says what is wrong, as the end of a sentence."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON ({error})") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise ValueError(f"its schema is {schema!r}, expected {SCHEMA!r}")
    try:
        entries = [_entry(table) for table in data["tables"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a table is not of the expected form ({error!r})") from error
    names = [(entry.world, entry.groups) for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"it has two tables for {name[0]} ranks in groups {name[1]}")
    return Tuning(entries)


def _entry(table: Mapping[str, Any]) -> Entry:
    world = table["world"]
    if type(world) is not int or world < 1:
        raise ValueError(f"world {world!r} is no number of ranks")
    groups = table["groups"]
    if groups is not None:
        groups = tuple(tuple(int(rank) for rank in group) for group in groups)
        check_groups(world, groups)
    rules = {}
    for name, listed in table["rules"].items():
        if name.upper() not in Collective.__members__:
            raise ValueError(f"{name!r} is no collective")
        collective = Collective[name.upper()]
        rules[collective] = _rules(collective, listed, grouped=groups is not None)
    return Entry(world, groups, rules)


def _rules(collective: Collective, listed: Sequence[Any], *, grouped: bool) -> tuple[Rule, ...]:
    offered = [n for n in BUILDERS[collective] if grouped or n not in GROUPED]
    found, before = [], -1
    for number, (algorithm, bound) in enumerate(listed, 1):
        if algorithm not in offered:
            raise ValueError(
                f"{collective.name} has no algorithm {algorithm!r} here; it has: "
                f"{', '.join(offered)}"
            )
        last = number == len(listed)
        if (bound is None) != last or (not last and (type(bound) is not int or bound <= before)):
            raise ValueError(
                f"the bounds of {collective.name} must be whole numbers that grow, the last null"
            )
        found.append(Rule(algorithm, max_bytes=bound))
        before = -1 if bound is None else bound
    if not found:
        raise ValueError(f"{collective.name} has no rule")
    return tuple(found)
