"""What the flight records of several ranks mean together: who waits for whom, who never came.

Collectives of a group have the same numbers on every rank (the engine counts them in issue
order), so ranks are compared number by number. What a rank without a dump did is taken from
what its peers last heard of it. Wall clocks of different hosts are never compared: durations
are within one dump.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean

from mccl.observe.dumps import Call, Group, View

SLOW_FACTOR = 2.0
SLOW_SECONDS = 0.001
"""A rank is called slow when the others wait that much more, and that long a collective."""


@dataclass(frozen=True)
class Finding:
    """One thing that the dumps say."""

    kind: str
    """failure, mismatch, missing, waiting, message, no-dump or slow."""
    group: str
    text: str
    ranks: tuple[int, ...]
    """The ranks to look at (global)."""
    sequence: int | None = None
    wrong: bool = True
    """False: worth knowing, nothing is broken."""


def examine(group: Group) -> list[Finding]:
    """What is to be said about one group, the most telling first."""
    found = [*_mismatch(group), *_stuck(group), *_messages(group), *_failures(group)]
    absent = [rank for rank in group.ranks if rank not in group.views]
    if absent:
        text = f"{_named(absent)} left no dump: ended without one, or could not write it"
        found.append(Finding("no-dump", group.name, text, tuple(absent), wrong=False))
    return [*found, *_slow(group)]


def _mismatch(group: Group) -> Iterable[Finding]:
    numbers = sorted({n for view in group.views.values() for n in view.collectives})
    for number in numbers:
        calls = {
            r: v.collectives[number] for r, v in group.views.items() if number in v.collectives
        }
        ways = Counter(map(_signature, calls.values()))
        if len(ways) < 2:
            continue
        (common, most), (_, second) = ways.most_common(2)
        odd = [r for r, call in calls.items() if most == second or _signature(call) != common]
        parts = [
            f"{_named(ranks)} called {_shown(calls[ranks[0]])}"
            for way in ways
            if (ranks := [r for r, call in calls.items() if _signature(call) == way])
        ]
        text = f"the ranks called different things as #{number}: " + "; ".join(parts)
        yield Finding("mismatch", group.name, text, tuple(sorted(odd)), number)
        return


def _signature(call: Call) -> tuple[object, ...]:
    sizes = None if call.name in ("all_to_all", "gather", "scatter") else call.sizes
    return call.name, call.dtype, call.count if call.count is not None else sizes, call.root


def _shown(call: Call) -> str:
    return call.shown + (f" at {call.caller}" if call.caller else "")


def _stuck(group: Group) -> Iterable[Finding]:
    pending = [
        number for view in group.views.values()
        for number, call in view.collectives.items() if not call.done
    ]  # fmt: skip
    if not pending:
        return
    number = min(pending)
    calls = {r: v.collectives[number] for r, v in group.views.items() if number in v.collectives}
    waiting = {rank: call for rank, call in calls.items() if not call.done}
    missing = [rank for rank in group.ranks if _never_came(group, rank, number)]
    example = next(iter(waiting.values()))
    what, plain = f"{_shown(example)} (#{number})", f"{example.shown} (#{number})"
    if missing:
        came = [f"{_since(group.views[r], call)}" for r, call in sorted(waiting.items())]
        text = f"{_named(missing)} never came to {what}. " + "; ".join(came)
        text += "".join(f". {_last_deed(group, rank)}" for rank in missing)
        yield Finding("missing", group.name, text, tuple(missing), number)
    edges = {r: c.waiting_for for r, c in waiting.items() if c.waiting_for is not None}
    if edges:
        lines = ", ".join(f"rank {a} for rank {b}" for a, b in sorted(edges.items()))
        ends = sorted({b for b in edges.values() if b not in edges})
        text = f"in {plain} waits {lines}"
        text += f"; all of it ends at {_named(ends)}" if ends else "; they wait in a circle"
        yield Finding("waiting", group.name, text, tuple(ends), number)
    elif not missing:
        came = [_since(group.views[r], call) for r, call in sorted(waiting.items())]
        text = f"every rank is in {plain}, and it is not complete. " + "; ".join(came)
        yield Finding("waiting", group.name, text, tuple(waiting), number)


def _never_came(group: Group, rank: int, number: int) -> bool:
    view = group.views.get(rank)
    if view is not None:
        return max(view.collectives, default=0) < number
    heard = [v.heard[rank].issued for v in group.views.values() if rank in v.heard]
    return bool(heard) and max(heard) < number


def _since(view: View, call: Call) -> str:
    moment = datetime.fromtimestamp(call.created, UTC).strftime("%H:%M:%S.%f")[:-3]
    text = f"rank {view.rank} has been in it since {moment} UTC"
    until = call.completed if call.completed is not None else view.time
    if until is not None:
        text += f", for {max(until - call.created, 0.0):.3f} s"
    return text + (" and gave up" if call.failed else "")


def _last_deed(group: Group, rank: int) -> str:
    view = group.views.get(rank)
    if view is not None:
        last = view.collectives[max(view.collectives)] if view.collectives else None
        if last is None:
            return f"Rank {rank} made no collective at all"
        state = "completed" if last.done else "not completed"
        return f"Rank {rank}'s newest was {_shown(last)} (#{last.sequence}), {state}"
    heard = max(
        (v.heard[rank] for v in group.views.values() if rank in v.heard), key=lambda h: h.issued
    )
    doing = f"in {heard.collective}" if heard.collective else "in no collective"
    return (
        f"Rank {rank} was last heard of {heard.silent:.3f} s before the dump: {doing}, "
        f"{heard.completed} of {heard.issued} completed"
    )


def _messages(group: Group) -> Iterable[Finding]:
    for rank, view in sorted(group.views.items()):
        for call in view.messages:
            if call.done:
                continue
            kind, _, ends = call.name.partition(" ")
            other = int(ends.replace("->", "<-").split("<-", 1)[1])
            peer = group.ranks[other] if other >= 0 else None
            whom = "any rank" if peer is None else f"rank {peer}"
            text = f"{kind} {'to' if kind == 'send' else 'from'} {whom} with tag {call.tag} waits. "
            text += _since(view, call)
            if kind == "recv" and peer in group.views:
                sent = _count(group.views[peer], f"send {other}->{group.ranks.index(rank)}", call)
                taken = _count(view, call.name, call)
                text += f"; it is receive {taken} of that kind, and rank {peer} has sent {sent}"
            blamed = () if peer is None else (peer,)
            yield Finding("message", group.name, text, blamed)


def _count(view: View, name: str, like: Call) -> int:
    return sum(call.name == name and call.tag == like.tag for call in view.messages)


def _failures(group: Group) -> Iterable[Finding]:
    known: dict[tuple[str, int | None], list[int]] = {}
    texts: dict[tuple[str, int | None], str] = {}
    for rank, view in sorted(group.views.items()):
        if view.failure is not None:
            key = view.failure.kind, view.failure.culprit
            known.setdefault(key, []).append(rank)
            if key not in texts or view.failure.reporter == rank:
                texts[key] = view.failure.message
    for (kind, culprit), ranks in known.items():
        blame = "" if culprit is None else f", culprit rank {culprit}"
        text = f"{kind}{blame}, as {_named(ranks)} know it: {texts[kind, culprit]}"
        yield Finding("failure", group.name, text, () if culprit is None else (culprit,))


def _slow(group: Group) -> Iterable[Finding]:
    common = set.intersection(
        *({n for n, call in v.collectives.items() if call.done} for v in group.views.values())
    )
    if len(group.views) < 2 or len(common) < 3:
        return
    waited: dict[int, float] = {}
    for rank, view in group.views.items():
        times = [view.collectives[n].blocked_receive for n in common]
        known = [t for t in times if t is not None]
        if len(known) < len(times):
            return
        waited[rank] = fmean(known)
    slowest = min(waited, key=lambda rank: waited[rank])
    others = fmean(t for rank, t in waited.items() if rank != slowest)
    if others - waited[slowest] < SLOW_SECONDS or others < SLOW_FACTOR * waited[slowest]:
        return
    text = (
        f"rank {slowest} is the slowest: over {len(common)} completed collectives it waited "
        f"{waited[slowest] * 1e3:.1f} ms each for bytes, the others {others * 1e3:.1f} ms"
    )
    yield Finding("slow", group.name, text, (slowest,), wrong=False)


def _named(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, sorted(ranks)))
