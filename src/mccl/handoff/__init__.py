"""How memory changes hands between PyTorch and the engine; the only room that knows GPUs."""

from __future__ import annotations

import threading
from typing import cast

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
    # "cuda" without a number has none, whatever torch's annotation says.
    index = cast("int | None", device.index)
    if device.type == "cuda" and index is None:
        index = torch.cuda.current_device()
    key = (device.type, index)
    with _lock:
        handoff = _handoffs.get(key)
        if handoff is None:
            handoff = _handoffs[key] = _make(device.type, index, config)
        return handoff


def _make(kind: str, index: int | None, config: Config) -> Handoff:
    # Imported on use: a CPU job loads nothing about GPUs.
    if kind == "cpu":
        return HostHandoff()
    if kind == "cuda":
        from mccl.handoff.cuda import cuda_handoff

        return cuda_handoff(torch.device(kind, index or 0), event_sync=config.event_sync)
    if kind == "mps":
        from mccl.handoff.metal import metal_handoff

        return metal_handoff(unified=config.unified_collective, event_sync=config.event_sync)
    raise UsageError(
        f"tensors on {kind} cannot take part in a collective: MCCL lends memory of cpu, cuda and "
        "mps devices; move the tensor there first"
    )
