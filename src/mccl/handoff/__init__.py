"""How memory changes hands between PyTorch and the engine; the only room that knows GPUs."""

from __future__ import annotations

import threading

import torch

from mccl.config import Config
from mccl.errors import UsageError
from mccl.handoff.base import Handoff, Lease, Translate, WaitTimeout
from mccl.handoff.host import HostHandoff

__all__ = ["Handoff", "HostHandoff", "Lease", "Translate", "WaitTimeout", "for_device"]

_lock = threading.Lock()
_handoffs: dict[tuple[str, int | None], Handoff] = {}


def for_device(device: torch.device, config: Config) -> Handoff:
    """The process's handoff for ``device``, made on first use.

    Tickets belong to a device, not to a process group, so all groups share one handoff a
    device; the first group's ``config`` decides. Raises ``UsageError`` for a device type
    that MCCL cannot lend memory of.
    """
    index = torch.cuda.current_device() if device.type == "cuda" and device.index is None else None
    key = (device.type, device.index if device.index is not None else index)
    with _lock:
        handoff = _handoffs.get(key)
        if handoff is None:
            handoff = _handoffs[key] = _make(torch.device(*key) if key[1] is not None else device)
        return handoff


def _make(device: torch.device) -> Handoff:
    if device.type == "cpu":
        return HostHandoff()
    raise UsageError(
        f"tensors on {device} cannot take part in a collective: MCCL lends memory of cpu, cuda "
        "and mps devices; move the tensor there first"
    )
