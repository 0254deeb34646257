"""A second, naive reading of the plan rules: one element at a time, in random order.

It shares no code with ``mccl.plans.check``. Sends are rendezvous; a RECV_REDUCE holds back
at most one element. It computes real values, so it tells what the engine would answer
under one of the many schedules a plan allows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from mccl.plans import Collective, DepKind, Plan, StepKind

Value = int
UNSET = None


class StuckError(Exception):
    """Nothing can move and not all steps are complete."""


class Interpreter:
    """Runs ``plans`` over ``buffers[rank][buffer]`` (lists of values), in place."""

    def __init__(
        self,
        plans: Sequence[Plan],
        externals: Sequence[Sequence[list[Value | None]]],
        combine: Callable[[Value, Value], Value],
        finish: Callable[[Value], Value],
        rng: random.Random,
    ) -> None:
        self.plans = plans
        # The tokens of a barrier have no value; everything else must be written first.
        fill = 0 if plans[0].collective is Collective.BARRIER else UNSET
        self.buffers = [
            [*external, *([fill] * s.count for s in plan.scratch)]
            for plan, external in zip(plans, externals, strict=True)
        ]
        self.combine, self.finish, self.rng = combine, finish, rng
        self.progress = [[0] * len(p.steps) for p in plans]
        self.held: dict[tuple[int, int], Value] = {}
        self.fifo = [self._fifo(p) for p in plans]
        self.moves = self._moves()

    @staticmethod
    def _fifo(plan: Plan) -> list[int | None]:
        last: dict[tuple[bool, int], int] = {}
        before: list[int | None] = []
        for i, step in enumerate(plan.steps):
            key = (step.kind is StepKind.SEND, step.peer)
            before.append(last.get(key) if step.peer >= 0 else None)
            last[key] = i
        return before

    def _moves(self) -> list[tuple[str, int, int, int, int]]:
        moves = []
        sends: dict[tuple[int, int], list[int]] = {}
        for plan in self.plans:
            for i, step in enumerate(plan.steps):
                if step.kind is StepKind.SEND:
                    sends.setdefault((plan.rank, step.peer), []).append(i)
        for plan in self.plans:
            for i, step in enumerate(plan.steps):
                if step.kind in (StepKind.RECV, StepKind.RECV_REDUCE):
                    sender = sends[(step.peer, plan.rank)].pop(0)
                    moves.append(("transfer", step.peer, sender, plan.rank, i))
                    if step.kind is StepKind.RECV_REDUCE:
                        moves.append(("reduce", plan.rank, i, -1, -1))
                elif step.kind is not StepKind.SEND:
                    moves.append(("local", plan.rank, i, -1, -1))
        return moves

    def _complete(self, rank: int, i: int) -> bool:
        return self.progress[rank][i] == self.plans[rank].steps[i].count

    def _posted(self, rank: int, i: int) -> bool:
        before = self.fifo[rank][i]
        return (before is None or self._complete(rank, before)) and all(
            self._complete(rank, d.step)
            for d in self.plans[rank].steps[i].deps
            if d.kind is DepKind.FULL
        )

    def _may(self, rank: int, i: int, x: int) -> bool:
        return self._posted(rank, i) and all(
            self.progress[rank][d.step] > x
            for d in self.plans[rank].steps[i].deps
            if d.kind is DepKind.STREAM
        )

    def _get(self, rank: int, region: object, x: int) -> Value:
        value = self.buffers[rank][region.buffer][region.offset + x]  # type: ignore[attr-defined]
        assert value is not UNSET, f"rank {rank} reads an unset element of {region}"
        return value

    def _put(self, rank: int, i: int, value: Value) -> None:
        step = self.plans[rank].steps[i]
        assert step.dst is not None
        x = self.progress[rank][i]
        self.buffers[rank][step.dst.buffer][step.dst.offset + x] = (
            self.finish(value) if step.final else value
        )
        self.progress[rank][i] += 1

    def _reduce(self, rank: int, i: int, here: Value, other: Value) -> None:
        if self.plans[rank].steps[i].incoming_first:
            here, other = other, here
        self._put(rank, i, self.combine(here, other))

    def _attempt(self, move: tuple[str, int, int, int, int]) -> bool:
        kind, rank, i, to, j = move
        step, x = self.plans[rank].steps[i], self.progress[rank][i]
        if x == step.count:
            return False
        if kind == "local":
            if not self._may(rank, i, x):
                return False
            value = self._get(rank, step.src, x)
            if step.kind is StepKind.COPY:
                self._put(rank, i, value)
            else:
                self._reduce(rank, i, self._get(rank, step.dst, x), value)
            return True
        if kind == "reduce":
            if (rank, i) not in self.held or not self._may(rank, i, x):
                return False
            self._reduce(rank, i, self._get(rank, step.src, x), self.held.pop((rank, i)))
            return True
        if not self._may(rank, i, x) or (to, j) in self.held:
            return False
        if self.plans[to].steps[j].kind is StepKind.RECV:
            if not self._may(to, j, x):
                return False
            self._put(to, j, self._get(rank, step.src, x))
        else:
            if not self._posted(to, j):
                return False
            self.held[(to, j)] = self._get(rank, step.src, x)
        self.progress[rank][i] += 1
        return True

    def run(self) -> None:
        """To the end. Raises StuckError on a deadlock."""
        moves = list(self.moves)
        while moves:
            self.rng.shuffle(moves)
            if not sum(self._attempt(m) for m in moves):
                raise StuckError
            moves = [m for m in moves if not self._complete(m[1], m[2])]
