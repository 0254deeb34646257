"""Find the layer that lies: a model on a device against float64 on the CPU (paper §6.2).

:func:`check_model` runs every operator of a model on the device and in float64, forward and
backward, and names the layer whose result differs. :func:`stft` and :func:`istft` are independent
of torch's, with exact gradients. :func:`patch_reflect_pad` mends the fault that started this.

The names are looked up on first use: ``mccl.numerics.guard`` can be read without torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mccl.numerics.check import check_model as check_model
    from mccl.numerics.compare import Thresholds as Thresholds
    from mccl.numerics.device import Device as Device
    from mccl.numerics.findings import Finding as Finding
    from mccl.numerics.findings import Report as Report
    from mccl.numerics.mrstft import MultiResolutionSTFTLoss as MultiResolutionSTFTLoss
    from mccl.numerics.mrstft import check_stft as check_stft
    from mccl.numerics.reflect_pad import patch_reflect_pad as patch_reflect_pad
    from mccl.numerics.repro import write_script as write_script
    from mccl.numerics.spectral import istft as istft
    from mccl.numerics.spectral import stft as stft
    from mccl.numerics.sweep import sweep_model as sweep_model

_EXPORTS = {
    "Device": "device",
    "Finding": "findings",
    "MultiResolutionSTFTLoss": "mrstft",
    "Report": "findings",
    "Thresholds": "compare",
    "check_model": "check",
    "check_stft": "mrstft",
    "istft": "spectral",
    "patch_reflect_pad": "reflect_pad",
    "stft": "spectral",
    "sweep_model": "sweep",
    "write_script": "repro",
}

__all__ = [
    "Device",
    "Finding",
    "MultiResolutionSTFTLoss",
    "Report",
    "Thresholds",
    "check_model",
    "check_stft",
    "istft",
    "patch_reflect_pad",
    "stft",
    "sweep_model",
    "write_script",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'mccl.numerics' has no attribute {name!r}")
    return getattr(importlib.import_module(f"mccl.numerics.{_EXPORTS[name]}"), name)
