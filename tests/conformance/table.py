"""The result as a table: one backend beside the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.conformance.runs import Outcome

STATES = ("passed", "failed", "skipped")


def counts(outcomes: Mapping[str, Outcome]) -> str:
    """``80 passed, 2 failed, 141 skipped``."""
    found = Counter(outcome.state for outcome in outcomes.values())
    return ", ".join(f"{found[state]} {state}" for state in STATES)


def worse(reference: Mapping[str, Outcome], ours: Mapping[str, Outcome]) -> list[str]:
    """Tests that the reference passes and ours does not."""
    return sorted(
        name
        for name, outcome in reference.items()
        if outcome.state == "passed" and ours.get(name, Outcome("missing")).state != "passed"
    )


def markdown(results: Mapping[str, Mapping[str, Outcome]], title: str) -> str:
    """Counts of every backend, then each test whose outcome is not the same everywhere."""
    names = sorted({name for outcomes in results.values() for name in outcomes})
    lines = [f"### {title}", ""]
    lines += [f"- {backend}: {counts(outcomes)}" for backend, outcomes in results.items()]
    lines += ["", f"| test | {' | '.join(results)} | why |", "|---" * (len(results) + 2) + "|"]
    for name in names:
        states = [results[b].get(name, Outcome("missing")) for b in results]
        if len({outcome.state for outcome in states}) == 1 and states[0].state != "failed":
            continue
        reasons = "; ".join(o.reason for o in states if o.reason).replace("|", "\\|")
        shown = " | ".join(outcome.state for outcome in states)
        lines.append(f"| {name} | {shown} | {reasons} |")
    return "\n".join(lines) + "\n"
