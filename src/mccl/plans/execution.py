"""Running a set of plans on paper: rendezvous, FIFO, symbolic values.

A send and the receive it is matched with happen together or not at all: nothing is
buffered between ranks, except that a RECV_REDUCE may hold what has arrived until its
own STREAM dependencies allow the reduction (the engine receives into link scratch). If
the plans finish here, they finish on every real network, which only buffers more.

Steps are moved whole. That is the same as moving them element by element, provided that
a RECV_REDUCE which holds its data is in lockstep with what it waits for: every step it
waits for, directly or through others, is itself at the head of its connection, opposite
a posted partner. Otherwise the holding place, which may be as small as one element,
would fill up and the element-wise run would stall where the step-wise one goes on.
``Execution._lockstep`` asks for just that. Sketch of a proof: take the event that comes
first in the step-wise run among those unfinished in a stuck element-wise run; all it
waits for whole is done, so it waits for a full holding place, hence for an earlier
element of a step in lockstep, and so on down to an element that waits for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from mccl.plans.faults import PlanError, show_step
from mccl.plans.plan import DepKind, Plan, Region, Step, StepKind
from mccl.plans.symbolic import (
    UNWRITTEN,
    DoubledError,
    Memory,
    Nodes,
    RefinishedError,
    Run,
    combined,
)

_SEND, _RECV, _RECV_REDUCE = StepKind.SEND, StepKind.RECV, StepKind.RECV_REDUCE


def bits(mask: int) -> list[int]:
    """The ranks in a bit mask."""
    return [i for i in range(mask.bit_length()) if mask >> i & 1]


class Execution:
    """One abstract run. Steps of all ranks are numbered through: ``base[rank] + step``."""

    def __init__(
        self, plans: Sequence[Plan], fifos: Sequence[list[int]], memory: list[list[Memory]],
        nodes: Nodes, *, values: bool,
    ) -> None:  # fmt: skip
        self.plans = plans
        self.memory = memory
        self.nodes = nodes
        self.values = values
        """False where only who heard of whom matters (barrier)."""
        self.base: list[int] = []
        self.steps: list[Step] = []
        self.owner: list[int] = []
        for plan in plans:
            self.base.append(len(self.steps))
            self.steps.extend(plan.steps)
            self.owner.extend([plan.rank] * len(plan.steps))
        total = len(self.steps)
        self.done = [False] * total
        self.partner = [-1] * total
        self._held: dict[int, list[Run]] = {}
        self._wait_full = [0] * total
        self._wait_stream = [0] * total
        self._wakes_full: list[list[int]] = [[] for _ in range(total)]
        self._wakes_stream: list[list[int]] = [[] for _ in range(total)]
        self.heard = [0] * total
        self.fifo = [-1] * total
        for plan, fifo in zip(plans, fifos, strict=True):
            self._link_steps(plan, fifo)
        self._match()

    def _link_steps(self, plan: Plan, fifo: list[int]) -> None:
        base = self.base[plan.rank]
        for number, step in enumerate(plan.steps, base):
            before = fifo[number - base]
            if before >= 0:
                self.fifo[number] = before + base
                self._wakes_full[before + base].append(number)
                self._wait_full[number] += 1
            for dep in step.deps:
                if dep.kind is DepKind.FULL:
                    self._wakes_full[dep.step + base].append(number)
                    self._wait_full[number] += 1
                else:
                    self._wakes_stream[dep.step + base].append(number)
                    self._wait_stream[number] += 1

    def _match(self) -> None:
        """Pair the k-th send with the k-th receive of every connection."""
        sends: dict[tuple[int, int], list[int]] = {}
        receives: dict[tuple[int, int], list[int]] = {}
        for number, step in enumerate(self.steps):
            if step.kind is _SEND:
                sends.setdefault((self.owner[number], step.peer), []).append(number)
            elif step.peer >= 0:
                receives.setdefault((step.peer, self.owner[number]), []).append(number)
        for link in sorted(sends.keys() | receives.keys()):
            out, into = sends.get(link, []), receives.get(link, [])
            name = f"connection {link[0]} -> {link[1]}"
            for k, (a, b) in enumerate(zip(out, into, strict=False)):
                if self.steps[a].count != self.steps[b].count:
                    raise PlanError(
                        f"{name}, message {k}: {self.steps[a].count} elements are sent but "
                        f"{self.steps[b].count} expected\n  {self.show(a)}\n  {self.show(b)}"
                    )
                self.partner[a], self.partner[b] = b, a
            if len(out) != len(into):
                extra = out[len(into)] if len(out) > len(into) else into[len(out)]
                raise PlanError(
                    f"{name}: {len(out)} sends but {len(into)} receives; the first one without "
                    f"a partner is\n  {self.show(extra)}"
                )

    def show(self, number: int) -> str:
        """A step for a message."""
        rank = self.owner[number]
        return show_step(self.plans[rank], number - self.base[rank])

    # ---- progress ---------------------------------------------------------

    def run(self) -> None:
        """Execute everything. Raises PlanError on a deadlock or a wrong combination."""
        ready = list(range(len(self.steps) - 1, -1, -1))
        stalled: list[int] = []
        left = len(self.steps)
        while True:
            before = left
            while ready:
                number = ready.pop()
                if not self.done[number]:
                    left -= self._try(number, ready, stalled)
            if left == 0:
                return
            if left == before or not stalled:
                raise PlanError(self._deadlock())
            ready, stalled = stalled, []

    def _try(self, number: int, ready: list[int], stalled: list[int]) -> int:
        """Do what ``number`` allows; returns how many steps got done."""
        if self._wait_full[number]:
            return 0
        step = self.steps[number]
        if step.peer < 0:
            if self._wait_stream[number]:
                return 0
            self._local(number, step)
            self._finish(number, ready)
            return 1
        if step.kind is _SEND:
            sender, receiver = number, self.partner[number]
        elif number in self._held:
            if self._wait_stream[number]:
                return 0
            self._reduce(number, self._held.pop(number))
            self._finish(number, ready)
            return 1
        else:
            sender, receiver = self.partner[number], number
        if self._wait_stream[sender] or self._wait_full[sender] or self._wait_full[receiver]:
            return 0
        waits = self._wait_stream[receiver]
        if waits:
            if self.steps[receiver].kind is _RECV:
                return 0
            if not self._lockstep(receiver):
                stalled.append(receiver)
                return 0
        arrived = self._read(sender, self.steps[sender].src)
        if waits:
            self._held[receiver] = arrived
            self._finish(sender, ready)
            return 1
        if self.steps[receiver].kind is _RECV:
            self._write(receiver, arrived)
        else:
            self._reduce(receiver, arrived)
        self._finish(sender, ready)
        self._finish(receiver, ready)
        return 2

    def _finish(self, number: int, ready: list[int]) -> None:
        self.done[number] = True
        for other in self._wakes_full[number]:
            self._wait_full[other] -= 1
            if not self._wait_full[other]:
                ready.append(other)
        for other in self._wakes_stream[number]:
            self._wait_stream[other] -= 1
            if not self._wait_stream[other]:
                ready.append(other)
        if not self.values:
            self._hear(number)

    def _hear(self, number: int) -> None:
        known = 1 << self.owner[number]
        for before in self._local_waits(number):
            known |= self.heard[before]
        if self.steps[number].kind in (_RECV, _RECV_REDUCE):
            known |= self.heard[self.partner[number]]
        self.heard[number] = known

    def _local_waits(self, number: int) -> list[int]:
        base = self.base[self.owner[number]]
        waits = [dep.step + base for dep in self.steps[number].deps]
        if self.fifo[number] >= 0:
            waits.append(self.fifo[number])
        return waits

    def _lockstep(self, receiver: int) -> bool:
        """Whether all that ``receiver`` waits for is under way at the same time."""
        visited = {receiver}
        stack = [receiver]
        while stack:
            number = stack.pop()
            if self._wait_full[number]:
                return False
            base = self.base[self.owner[number]]
            wanted = [d.step + base for d in self.steps[number].deps if d.kind is DepKind.STREAM]
            if self.partner[number] >= 0:
                wanted.append(self.partner[number])
            for other in wanted:
                if not self.done[other] and other not in visited:
                    visited.add(other)
                    stack.append(other)
        return True

    # ---- values -----------------------------------------------------------

    def _read(self, number: int, region: Region | None) -> list[Run]:
        if region is None or not self.values:
            return []
        runs = self.memory[self.owner[number]][region.buffer].read(region.offset, region.count)
        for _, node, _ in runs:
            if node == UNWRITTEN:
                raise PlanError(f"reads elements that nothing has written\n  {self.show(number)}")
        return runs

    def _write(self, number: int, runs: list[Run]) -> None:
        step = self.steps[number]
        if step.dst is None or not self.values:
            return
        if step.final:
            try:
                runs = [(count, self.nodes.finish(node), shift) for count, node, shift in runs]
            except RefinishedError:
                raise PlanError(
                    f"marks a value as final that is final already\n  {self.show(number)}"
                ) from None
        self.memory[self.owner[number]][step.dst.buffer].write(step.dst.offset, runs)

    def _local(self, number: int, step: Step) -> None:
        runs = self._read(number, step.src)
        if step.kind is StepKind.REDUCE:
            runs = self._combine(number, self._read(number, step.dst), runs)
        self._write(number, runs)

    def _reduce(self, number: int, arrived: list[Run]) -> None:
        self._write(
            number, self._combine(number, self._read(number, self.steps[number].src), arrived)
        )

    def _combine(self, number: int, here: list[Run], other: list[Run]) -> list[Run]:
        if not self.values:
            return []
        if self.steps[number].incoming_first:
            here, other = other, here
        try:
            return combined(self.nodes, here, other)
        except DoubledError as doubled:
            sender = self.partner[number]
            origin = f"\n  {self.show(sender)}" if sender >= 0 else ""
            raise PlanError(
                f"counts the contribution of rank(s) {bits(doubled.args[0])} twice\n"
                f"  {self.show(number)}{origin}"
            ) from None
        except RefinishedError:
            raise PlanError(
                f"combines a value that is marked final already\n  {self.show(number)}"
            ) from None

    # ---- deadlock ---------------------------------------------------------

    def _deadlock(self) -> str:
        """Follow who waits for whom until a step comes up again."""
        number = next(i for i, done in enumerate(self.done) if not done)
        path: list[int] = []
        while number not in path:
            path.append(number)
            number = self._waits_for(number)
        cycle = path[path.index(number) :]
        lines = "\n".join(f"  {self.show(i)}\n    waits for" for i in cycle)
        return (
            f"deadlock: {self.done.count(False)} of {len(self.done)} steps never finish; "
            f"cyclic wait\n"
            f"{lines}\n  {self.show(cycle[0])}"
        )

    def _waits_for(self, number: int) -> int:
        partner = self.partner[number]
        for other in self._local_waits(number):
            if not self.done[other]:
                return other
        if partner >= 0 and not self.done[partner]:
            return partner
        raise AssertionError(f"step {number} is ready but was not run")
