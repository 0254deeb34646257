"""The list of examinations, and the loop that runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from mccl.doctor import choices, network, selftest, software, system
from mccl.doctor.finding import Finding, Status

Examination = Callable[[], Iterable[Finding]]

EXAMINATIONS: dict[str, Examination] = {
    "software": software.examine,
    "machine": system.examine,
    "settings": software.settings,
    "network": network.examine,
    "algorithms": choices.examine,
    "plans": software.plans,
    "self-test": selftest.examine,
}
"""Section -> function, in the order of the report."""


def examine(sections: Sequence[str]) -> Iterator[Finding]:
    """Findings of the sections named, as they come."""
    for section in sections:
        try:
            yield from EXAMINATIONS[section]()
        except Exception as error:  # noqa: BLE001 - becomes a finding, see the package's docstring
            yield Finding(
                section,
                "examination",
                Status.FAIL,
                f"{type(error).__name__}: {error}",
                "This examination could not finish; what it says above may name the cause.",
            )
