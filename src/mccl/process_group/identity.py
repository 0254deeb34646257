"""Who a group is: names, devices, options, sequence numbers, the answers c10d asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch

from mccl.process_group.members import Members
from mccl.process_group.options import microseconds


@dataclass
class GroupOptions:
    """What ``pg_options=`` of ``init_process_group`` and ``new_group`` may carry, and ``options``.

    The underscore is c10d's spelling (``Backend.Options``).
    """

    _timeout: timedelta = timedelta(minutes=30)
    global_ranks_in_group: list[int] = field(default_factory=list)
    group_name: str = ""
    backend: str = "mccl"


class Identity(Members):
    """Properties of a group, in the spellings of torch 2.11 to the newest."""

    _group_name: str
    _group_desc: str
    _bound_device: torch.device | None
    _options: GroupOptions

    def getBackendName(self) -> str:
        """``mccl``."""
        return "mccl"

    def _get_backend_name(self) -> str:
        return "mccl"

    def name(self) -> str:
        """``mccl``."""
        return "mccl"

    def setGroupName(self, name: str) -> None:
        """Called by c10d once the group exists."""
        self._group_name = name

    def getGroupName(self) -> str:
        """The group's name in c10d's registry."""
        return self._group_name

    _set_group_name = setGroupName

    @property
    def group_name(self) -> str:
        """The group's name in c10d's registry."""
        return self._group_name

    def setGroupDesc(self, description: str) -> None:
        """Called by c10d once the group exists."""
        self._group_desc = description

    def getGroupDesc(self) -> str:
        """What the group is for."""
        return self._group_desc

    _set_group_desc = setGroupDesc

    @property
    def group_desc(self) -> str:
        """What the group is for."""
        return self._group_desc

    @property
    def bound_device_id(self) -> torch.device | None:
        """The device given as ``device_id=`` to ``init_process_group``."""
        return self._bound_device

    @bound_device_id.setter
    def bound_device_id(self, device: torch.device | None) -> None:
        self._bound_device = device

    @property
    def _device_types(self) -> list[torch.device]:
        found = [torch.device("cpu")]
        if torch.cuda.is_available():
            found.append(torch.device("cuda"))
        if torch.backends.mps.is_available():
            found.append(torch.device("mps"))
        return found

    def _get_backend(self, device: torch.device) -> Identity:
        # The group is its own backend for every device.
        return self

    @property
    def options(self) -> GroupOptions:
        """The options in force."""
        return self._options

    @property
    def supports_splitting(self) -> bool:
        """True: see ``split_group``."""
        return True

    @property
    def supports_coalescing(self) -> bool:
        """True."""
        return True

    @property
    def supports_time_estimate(self) -> bool:
        """False."""
        return False

    @property
    def supports_shrinking(self) -> bool:
        """False."""
        return False

    @property
    def supports_tensor_alloc(self) -> bool:
        """False: any memory of a supported device will do."""
        return False

    def eager_connect_single_device(self, device: torch.device | None = None) -> None:
        """Called for ``device_id=``; connections are made on first use all the same."""
        self._bound_device = device

    def perform_nocolor_split(self, device: torch.device | None = None) -> None:
        """Called on ranks that a split leaves out; they have nothing to do."""

    def set_timeout(self, timeout: timedelta) -> None:
        """Time limit of the group's later operations."""
        self._launcher.timeout_us = microseconds(timeout)
        self._options._timeout = timeout

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        self._launcher.sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._launcher.sequence

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        """Nothing to do: there are no completion hooks."""


def ranks_of(global_ranks: Sequence[int], size: int) -> list[int]:
    """The members' global ranks; c10d leaves the list empty for the default group."""
    return list(global_ranks) if global_ranks else list(range(size))
