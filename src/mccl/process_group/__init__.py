"""The face that ``torch.distributed`` sees: c10d calls become plans, leases and operations."""

from __future__ import annotations

from mccl.process_group.group import ProcessGroupMCCL, create
from mccl.process_group.identity import GroupOptions
from mccl.process_group.monitored import monitored_barrier

__all__ = ["GroupOptions", "ProcessGroupMCCL", "create", "monitored_barrier"]
