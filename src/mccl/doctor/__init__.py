"""The doctor: what this machine offers to a job, and what to mend.

Each examination is a function that gives :class:`Finding` objects; ``examine`` runs them in order.
An examination that itself fails becomes a finding, so one broken corner hides nothing else.
"""

from __future__ import annotations

from mccl.doctor.examine import EXAMINATIONS, examine
from mccl.doctor.finding import Finding, Status

__all__ = ["EXAMINATIONS", "Finding", "Status", "examine"]
