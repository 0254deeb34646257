"""Which algorithm runs: a table, and the door from a name to a plan.

``choose`` reads a table of rules top down and takes the first that fits. It looks only
at what all ranks know alike (collective, bytes, world size, flags), so all ranks choose
alike. A fitted model replaces the table, not this code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mccl.plans import (
    binomial,
    chain,
    direct,
    double_tree,
    pairwise,
    rabenseifner,
    recursive_doubling,
    ring,
    two_level,
    two_level_doubling,
)
from mccl.plans.barrier import barrier
from mccl.plans.plan import Collective, Plan
from mccl.plans.request import Request

SMALL_MESSAGE_BYTES = 256 * 1024
"""Up to this many bytes latency decides (``MCCL_SMALL_MSG_THRESHOLD``)."""

DIRECT_MAX_WORLD = 16
"""Largest world in which every rank may be connected to every other by default."""


@dataclass(frozen=True, slots=True)
class Rule:
    """``algorithm`` is the choice where all conditions hold; bounds are inclusive."""

    algorithm: str
    max_bytes: int | None = None
    min_world: int = 1
    max_world: int | None = None
    low_precision_only: bool = False
    grouped_only: bool = False

    def fits(self, nbytes: int, world: int, low_precision: bool, grouped: bool) -> bool:
        """Whether the conditions hold."""
        return (
            (self.max_bytes is None or nbytes <= self.max_bytes)
            and self.min_world <= world
            and (self.max_world is None or world <= self.max_world)
            and (low_precision or not self.low_precision_only)
            and (grouped or not self.grouped_only)
        )


ONE_ROUNDING = Rule("direct", min_world=3, max_world=DIRECT_MAX_WORLD, low_precision_only=True)
"""Sums of float16 and bfloat16 are rounded once, at their end. Two ranks add once anyway."""

Table: TypeAlias = Mapping[Collective, Sequence[Rule]]
"""The last rule of every collective must fit always."""


def default_table(small_threshold: int = SMALL_MESSAGE_BYTES) -> Table:
    """The table in force when no model was fitted.

    Above ``small_threshold`` (bytes) a world of two keeps the ring for low precision as
    well: with a single addition there is nothing for ``direct`` to save.
    """
    small = small_threshold
    one_hop = Rule("direct", max_bytes=small, max_world=DIRECT_MAX_WORLD)
    return {
        Collective.ALL_REDUCE: (
            Rule("recursive_doubling", max_bytes=small),
            Rule("two_level", grouped_only=True),
            ONE_ROUNDING,
            Rule("ring"),
        ),
        Collective.REDUCE_SCATTER: (one_hop, ONE_ROUNDING, Rule("ring")),
        Collective.ALL_GATHER: (one_hop, Rule("ring")),
        Collective.BROADCAST: (Rule("binomial", max_bytes=small), Rule("chain")),
        Collective.REDUCE: (Rule("binomial", max_bytes=small), Rule("chain")),
        Collective.GATHER: (Rule("binomial", max_bytes=small), Rule("direct")),
        Collective.SCATTER: (Rule("binomial", max_bytes=small), Rule("direct")),
        Collective.ALL_TO_ALL: (Rule("pairwise"),),
        Collective.BARRIER: (Rule("dissemination"),),
    }


Builder: TypeAlias = Callable[[int, int, Request], Plan]

BUILDERS: Mapping[Collective, Mapping[str, Builder]] = {
    Collective.ALL_REDUCE: {
        "ring": lambda w, r, q: ring.all_reduce(w, r, q.count),
        "recursive_doubling": lambda w, r, q: recursive_doubling.all_reduce(w, r, q.count),
        "direct": lambda w, r, q: direct.all_reduce(w, r, q.count),
        "two_level": lambda w, r, q: two_level.all_reduce(w, r, q.count, q.groups),
        "two_level_doubling": lambda w, r, q: two_level_doubling.all_reduce(
            w, r, q.count, q.groups
        ),
        "rabenseifner": lambda w, r, q: rabenseifner.all_reduce(w, r, q.count),
        "double_tree": lambda w, r, q: double_tree.all_reduce(w, r, q.count),
    },
    Collective.REDUCE_SCATTER: {
        "ring": lambda w, r, q: ring.reduce_scatter(w, r, q.sizes, list_input=q.list_input),
        "direct": lambda w, r, q: direct.reduce_scatter(w, r, q.sizes, list_input=q.list_input),
    },
    Collective.ALL_GATHER: {
        "ring": lambda w, r, q: ring.all_gather(w, r, q.sizes, list_output=q.list_output),
        "direct": lambda w, r, q: direct.all_gather(w, r, q.sizes, list_output=q.list_output),
    },
    Collective.BROADCAST: {
        "binomial": lambda w, r, q: binomial.broadcast(w, r, q.count, q.root),
        "chain": lambda w, r, q: chain.broadcast(w, r, q.count, q.root),
    },
    Collective.REDUCE: {
        "binomial": lambda w, r, q: binomial.reduce(w, r, q.count, q.root),
        "chain": lambda w, r, q: chain.reduce(w, r, q.count, q.root),
    },
    Collective.GATHER: {
        "binomial": lambda w, r, q: binomial.gather(
            w, r, q.sizes, q.root, list_output=q.list_output
        ),
        "direct": lambda w, r, q: direct.gather(w, r, q.sizes, q.root, list_output=q.list_output),
    },
    Collective.SCATTER: {
        "binomial": lambda w, r, q: binomial.scatter(
            w, r, q.sizes, q.root, list_input=q.list_input
        ),
        "direct": lambda w, r, q: direct.scatter(w, r, q.sizes, q.root, list_input=q.list_input),
    },
    Collective.ALL_TO_ALL: {
        "pairwise": lambda w, r, q: pairwise.all_to_all(
            w, r, q.sizes, q.recv_sizes, list_input=q.list_input, list_output=q.list_output
        ),
    },
    Collective.BARRIER: {"dissemination": lambda w, r, q: barrier(w, r)},
}
"""Collective -> algorithm name -> builder."""

GROUPED = frozenset({"two_level", "two_level_doubling"})
"""Algorithms that need ``Request.groups``."""

ALGORITHMS: tuple[str, ...] = ("auto", *sorted({n for names in BUILDERS.values() for n in names}))
"""What ``MCCL_ALGO`` accepts."""


def check_algorithm(name: str) -> str:
    """``name`` itself. ValueError naming the accepted ones when it is none of them."""
    if name not in ALGORITHMS:
        raise ValueError(
            f"MCCL_ALGO={name!r} is no algorithm; accepted: {', '.join(ALGORITHMS)} "
            "(one that a collective does not have leaves that collective on 'auto')"
        )
    return name


def choose(
    collective: Collective,
    count: int,
    itemsize: int,
    world: int,
    *,
    small_threshold: int = SMALL_MESSAGE_BYTES,
    algo: str | None = None,
    low_precision: bool = False,
    compressed: bool = False,
    grouped: bool = False,
    table: Table | None = None,
) -> str:
    """Name of the algorithm for a collective; the same on every rank.

    ``count``: elements of the whole payload as every rank knows it: the tensor of an
    all-reduce, broadcast or reduce, all ranks' pieces together otherwise. ``itemsize``:
    bytes an element. ``low_precision``: the dtype is float16 or bfloat16 and the
    collective reduces. ``compressed``: the wire dtype is narrower; that all-reduce is
    always a ring, whose partial sums stay wide at every rank. ``grouped``: the ranks form
    several groups, each on one switch. ``algo`` overrides the table where the collective
    has that algorithm ("auto" and None do not; those of ``GROUPED`` only if ``grouped``).
    """
    offered = BUILDERS[collective]
    if algo is not None:
        check_algorithm(algo)
    if compressed and "ring" in offered:
        return "ring"
    if algo is not None and algo in offered and (grouped or algo not in GROUPED):
        return algo
    rules = (default_table(small_threshold) if table is None else table)[collective]
    nbytes = count * itemsize
    for rule in rules:
        if rule.fits(nbytes, world, low_precision, grouped):
            return rule.algorithm
    raise ValueError(
        f"no rule of the table fits {collective.name} of {nbytes} bytes on {world} ranks; "
        "the last rule of each collective must fit always"
    )


def build(collective: Collective, algorithm: str, world: int, rank: int, request: Request) -> Plan:
    """The plan of ``rank``. ValueError when the collective has no such algorithm."""
    offered = BUILDERS[collective]
    if algorithm not in offered:
        raise ValueError(
            f"{collective.name} has no algorithm {algorithm!r}; it has: {', '.join(offered)}"
        )
    return offered[algorithm](world, rank, request)
