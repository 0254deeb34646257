"""Make ``backend="mccl"`` known to ``torch.distributed``.

``import torch`` calls :func:`load` through the entry point group ``torch.backends`` and turns any
exception into a failed ``import torch``. So nothing here may raise, and nothing heavy is imported:
the process group itself is loaded when the first group is made.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import warnings
from typing import Any

DEVICES = ("cpu", "cuda", "mps")


def _create(distributed_options: Any, options: Any) -> Any:
    from mccl import log
    from mccl.config import Config
    from mccl.process_group import create

    log.setup(Config.from_env())
    return create(distributed_options, options)


def _warn(error: Exception) -> None:
    # "always" within the block: under -W error a plain warning would itself break import torch.
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn(
            f"backend 'mccl' was not registered: {type(error).__name__}: {error}. "
            "torch works without it; `mccl doctor` says more.",
            RuntimeWarning,
            stacklevel=3,
        )


def load() -> None:
    """Register the backend once. Never raises: a failure is warned about."""
    try:
        import torch.distributed as dist

        if not dist.is_available() or "mccl" in dist.Backend.backend_list:
            return
        dist.Backend.register_backend("mccl", _create, extended_api=True, devices=list(DEVICES))
    except Exception as error:  # the boundary named in the docstring
        _warn(error)


def _torch_will_call_us() -> bool:
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        return False
    found = importlib.metadata.entry_points(group="torch.backends")
    return any(point.value == "mccl._autoload:load" for point in found)


def on_import() -> None:
    """Called by ``import mccl``: register now, unless ``import torch`` is going to do it."""
    if "torch" in sys.modules or not _torch_will_call_us():
        load()
    # Light (no torch in it), and on a Mac alone does it say anything.
    from mccl.numerics import guard

    guard.warn_on_mac()
