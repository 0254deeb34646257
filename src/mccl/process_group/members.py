"""What the parts of the process group share."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from mccl.process_group.calls import Calls
from mccl.process_group.launch import DONE, Launcher
from mccl.process_group.work import GroupedWork


class Members:
    """State of one group on one rank; the parts of ``ProcessGroupMCCL`` build on it."""

    _rank: int
    _size: int
    _calls: Calls
    _launcher: Launcher

    def _grouped(self, works: list[dist.Work], value: Any, asynchronous: bool) -> dist.Work:
        """One work for several, waited for here when the call is synchronous."""
        work = GroupedWork(works, value)
        if not asynchronous and self._launcher.coalescing is None:
            work.wait()
            return DONE
        return work
