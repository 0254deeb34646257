"""A discrete-event simulation of plans: the steps the engine would run, on a modelled network.

Theory of operation. A message is cut into *parts*; a part is an interval, from when its first
byte is there to when its last one is. It passes the sender's link, the uplinks of both switches
where these differ, a hop of latency and the receiver's link. Each of these serves parts in the
order in which their first bytes come, as fast as it can but no faster than they come (cut-through,
so a part's end is never before its predecessor's end plus latency). One connection offers a link
one part at a time, so connections that share a link take turns, as TCP flows do.

A part of a step starts when the same part of every step it streams from has started, ends after
those ended, and waits for full dependencies altogether: the rules of ``plans.plan``. Sends do not
wait for the receiver: the network buffers, as sockets do.

Where a link has only one connection there is nothing to share, and the part's interval follows at
once; only shared links need events in time order. In a symmetric plan on an even network ranks
are alike; one of each kind is simulated (``symmetry``), which makes a ring of a thousand ranks a
matter of milliseconds.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from mccl.model.network import Network
from mccl.plans import DepKind, Plan, StepKind

PART_BYTES = 256 << 10
"""A message has one part for each of these bytes: what the engine reads and adds at a time."""

MAX_PARTS = 16
"""At most so many; more would refine how flows share a link by less than a per cent."""

_SEND, _RECV, _RECV_REDUCE = StepKind.SEND, StepKind.RECV, StepKind.RECV_REDUCE
_OUT, _UP, _DOWN, _IN = range(4)


class SimulationError(ValueError):
    """The plans do not fit together, or never finish."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``finish[i]``: seconds at which simulated rank i was done."""

    finish: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """When the last rank was done."""
        return max(self.finish)


@dataclass(frozen=True, slots=True)
class Kinds:
    """Which ranks are alike: ``kind[rank]`` for all, and how many there are of each kind on one
    switch (what they share of its uplink)."""

    kind: Sequence[int]
    alike: int = 1


def run(
    plans: Sequence[Plan], network: Network, *, itemsize: int = 4, kinds: Kinds | None = None
) -> Outcome:
    """Simulate ``plans``: one for each rank, or, with ``kinds``, one for each kind of ranks.

    ``itemsize``: bytes an element takes on the wire. Raises SimulationError when plans do not fit
    together.
    """
    world = plans[0].world
    if network.hosts < world:
        raise SimulationError(f"{world} ranks do not fit on {network.hosts} hosts, one each")
    if kinds is None:
        kinds = Kinds(range(world))
    return _Simulation(plans, network, itemsize, kinds).run()


class _Simulation:
    """Steps of all simulated ranks are numbered through; lists are indexed by that number."""

    def __init__(
        self, plans: Sequence[Plan], network: Network, itemsize: int, kinds: Kinds
    ) -> None:
        self._network = network
        self._kinds = kinds
        self._plans = plans
        self._owner: list[int] = []
        self._kind: list[StepKind] = []
        self._bytes: list[float] = []
        self._parts: list[int] = []
        self._deps: list[list[tuple[int, bool]]] = []
        self._wakes: list[list[int]] = []
        base = 0
        for number, plan in enumerate(plans):
            self._add(plan, number, base, itemsize)
            base += len(plan.steps)
        total = len(self._owner)
        self._partner = [-1] * total
        self._path: list[tuple[int, int] | None] = [None] * total
        self._extra = [0.0] * total
        self._connect()
        self._first: list[list[float]] = [[] for _ in range(total)]
        self._last: list[list[float]] = [[] for _ in range(total)]
        self._arrived: list[list[tuple[float, float]]] = [[] for _ in range(total)]
        self._offered = [False] * total
        self._events: list[tuple[float, int, int, int, float, float]] = []
        self._order = 0
        self._prepare_links()

    # ---- setting up ---------------------------------------------------------------------

    def _add(self, plan: Plan, number: int, base: int, itemsize: int) -> None:
        before: dict[tuple[bool, int], int] = {}
        for at, step in enumerate(plan.steps, base):
            size = step.count * itemsize
            deps = [(base + d.step, d.kind is DepKind.FULL) for d in step.deps]
            if step.peer >= 0:
                connection = (step.kind is _SEND, step.peer)
                if connection in before:
                    deps.append((before[connection], True))
                before[connection] = at
            self._owner.append(number)
            self._kind.append(step.kind)
            self._bytes.append(float(size))
            self._parts.append(max(1, min(MAX_PARTS, size // PART_BYTES)))
            self._deps.append(deps)
            self._wakes.append([])
            for other, _ in deps:
                self._wakes[other].append(at)

    def _connect(self) -> None:
        """Pair the k-th send with the k-th receive of every connection."""
        kind = self._kinds.kind
        sends: dict[tuple[int, int], dict[int, list[int]]] = {}
        receives: dict[tuple[int, int], dict[int, list[int]]] = {}
        base = 0
        for number, plan in enumerate(self._plans):
            for at, step in enumerate(plan.steps, base):
                if step.peer < 0:
                    continue
                # Ranks that are alike stand for each other; those that meet several of a kind
                # meet them in the same order.
                if step.kind is _SEND:
                    key, table = (number, kind[step.peer]), sends
                else:
                    key, table = (kind[step.peer], number), receives
                table.setdefault(key, {}).setdefault(step.peer, []).append(at)
            base += len(plan.steps)
        for key in sends.keys() | receives.keys():
            out, into = list(sends.get(key, {}).values()), list(receives.get(key, {}).values())
            sizes = [[self._bytes[at] for at in steps] for steps in out]
            if sizes != [[self._bytes[at] for at in steps] for steps in into]:
                raise SimulationError(
                    f"what rank {self._plans[key[0]].rank} sends is not what rank "
                    f"{self._plans[key[1]].rank} receives from it"
                )
            for a, b in zip(chain(*out), chain(*into), strict=True):
                self._partner[a] = b
        self._peers = [
            [len({s.peer for s in plan.steps if s.peer >= 0 and (s.kind is _SEND) is sending})
             for plan in self._plans]
            for sending in (False, True)
        ]  # fmt: skip

    def _prepare_links(self) -> None:
        network, plans = self._network, self._plans
        self._out_rate = [network.rate(plan.rank) for plan in plans]
        self._out_free = [network.late.get(plan.rank, 0.0) for plan in plans]
        self._in_free = list(self._out_free)
        self._add_free = list(self._out_free)
        self._start = list(self._out_free)
        switch = network.switch_of()
        count = max(switch) + 1
        self._up_free, self._down_free = [0.0] * count, [0.0] * count
        self._up_rate = [
            network.uplink(len(members)) / self._kinds.alike for members in network.switches
        ] or [1.0]
        if not network.switches:
            return
        base = 0
        for plan in plans:
            for at, step in enumerate(plan.steps, base):
                if step.kind is _SEND and switch[step.peer] != switch[plan.rank]:
                    self._path[at] = (switch[plan.rank], switch[step.peer])
                    self._extra[at] = network.uplink_hop
            base += len(plan.steps)

    # ---- running ------------------------------------------------------------------------

    def run(self) -> Outcome:
        """Until nothing is left to do."""
        ready = list(range(len(self._owner) - 1, -1, -1))
        while True:
            while ready:
                self._advance(ready.pop(), ready)
            if not self._events:
                break
            time, _, stage, at, first, last = heapq.heappop(self._events)
            self._pass(stage, at, time, first, last, ready)
        finish = list(self._start)
        for at, parts in enumerate(self._parts):
            if len(self._last[at]) < parts:
                raise SimulationError("the plans wait for each other and never finish")
            finish[self._owner[at]] = max(finish[self._owner[at]], self._last[at][-1])
        return Outcome(tuple(finish))

    def _advance(self, at: int, ready: list[int]) -> None:
        """Do the next parts of step ``at`` that are free to go."""
        firsts, lasts = self._first[at], self._last[at]
        while len(firsts) < self._parts[at] and not self._offered[at]:
            part = len(firsts)
            first = lasts[-1] if part else self._start[self._owner[at]]
            last = first
            for other, full in self._deps[at]:
                known = len(self._last[other])
                if full:
                    if known < self._parts[other]:
                        return
                    first = max(first, self._last[other][-1])
                elif known <= part:
                    return
                else:
                    first = max(first, self._first[other][part])
                    last = max(last, self._last[other][part])
            kind = self._kind[at]
            if kind is _SEND:
                self._offered[at] = True
                if self._peers[True][self._owner[at]] == 1:
                    self._pass(_OUT, at, first, first, last, ready)
                else:
                    self._push(_OUT, at, first, first, last)
                continue
            if kind is _RECV or kind is _RECV_REDUCE:
                if len(self._arrived[at]) <= part:
                    return
                there, whole = self._arrived[at][part]
                first, last = max(first, there), max(last, whole)
            if kind is not _RECV and self._network.gamma:
                rank = self._owner[at]
                work = self._bytes[at] / self._parts[at] * self._network.gamma
                first = max(first, self._add_free[rank])
                self._add_free[rank] = first + work
                last = max(last, first + work)
            self._done(at, first, last, ready)

    def _work(self, at: int) -> float:
        return self._bytes[at] / self._parts[at] / self._out_rate[self._owner[at]]

    def _push(self, stage: int, at: int, time: float, first: float, last: float) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, stage, at, first, last))

    def _done(self, at: int, first: float, last: float, ready: list[int]) -> None:
        self._first[at].append(first)
        self._last[at].append(last)
        ready.extend(self._wakes[at])

    def _pass(
        self, stage: int, at: int, time: float, first: float, last: float, ready: list[int]
    ) -> None:
        """Part of send ``at``, which came in ``[first, last]``, at its next place at ``time``."""
        network = self._network
        if stage == _OUT:
            rank = self._owner[at]
            part = len(self._first[at])
            work = self._work(at)
            first = max(time, self._out_free[rank]) + (0.0 if part else network.message)
            self._out_free[rank] = first + work
            last = max(last, first + work)
            self._offered[at] = False
            self._done(at, first, last, ready)
            ready.append(at)
            path = self._path[at]
            if path is not None:
                self._push(_UP, at, first, first, last)
                return
        elif stage in (_UP, _DOWN):
            path = self._path[at]
            assert path is not None
            switch = path[stage == _DOWN]
            free = self._up_free if stage == _UP else self._down_free
            work = self._bytes[at] / self._parts[at] / self._up_rate[switch]
            first = max(time, free[switch])
            free[switch] = first + work
            last = max(last, first + work)
            if stage == _UP:
                self._push(_DOWN, at, first, first, last)
                return
        if stage != _IN:
            hop = network.hop + self._extra[at]
            first, last = first + hop, last + hop
            if self._peers[False][self._owner[self._partner[at]]] > 1:
                self._push(_IN, at, first, first, last)
                return
        self._land(at, first, last, ready)

    def _land(self, at: int, first: float, last: float, ready: list[int]) -> None:
        into = self._partner[at]
        rank = self._owner[into]
        part = len(self._arrived[into])
        work = self._bytes[at] / self._parts[at] / self._out_rate[rank]
        first = max(first, self._in_free[rank]) + (0.0 if part else self._network.message)
        self._in_free[rank] = first + work
        self._arrived[into].append((first, max(last, first + work)))
        ready.append(into)
