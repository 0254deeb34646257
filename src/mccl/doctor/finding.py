"""What an examination found."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Status(enum.StrEnum):
    """``OK``: fine. ``WARN``: works, but worth mending. ``FAIL``: a job will not run."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `advice` says what to do and is given for all but ``OK``."""

    section: str
    name: str
    status: Status
    value: str
    advice: str = ""

    def __post_init__(self) -> None:
        if self.status is not Status.OK and not self.advice:
            raise ValueError(f"{self.section}/{self.name}: a finding that is not ok needs advice")
