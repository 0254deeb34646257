"""Warn once, on import, where torch's reflection padding has wrong gradients on a Mac.

Needs no torch: ``import mccl`` asks this before anything heavy is loaded.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import warnings

FIXED = (2, 15)
"""First torch release with Metal kernels for reflection padding (pytorch#196949, #196985)."""

_warned = False


class ReflectPadWarning(UserWarning):
    """Gradients of reflection padding are wrong on this torch and device."""


def torch_version() -> str | None:
    """The installed torch's version, without importing it; None if there is none."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def affected(version: str | None) -> bool:
    """Whether reflection-pad backward on MPS is wrong in torch `version` (paper §6.2).

    It was wrong in every release looked at, 2.11 to 2.14.1; what cannot be read counts as fine.
    """
    found = re.match(r"(\d+)\.(\d+)", version or "")
    return found is not None and (int(found[1]), int(found[2])) < FIXED


def warn_on_mac(platform: str = sys.platform) -> None:
    """Warn if this is a Mac with an affected torch. Once a process."""
    global _warned
    version = torch_version()
    if _warned or platform != "darwin" or not affected(version):
        return
    _warned = True
    text = (
        f"torch {version} computes wrong gradients of F.pad(mode='reflect'), and so of every "
        "centred torch.stft, on MPS for signals of 65,536 samples and more. Call "
        "mccl.numerics.patch_reflect_pad() once before training, or use torch 2.15 or later."
    )
    try:
        warnings.warn(text, ReflectPadWarning, stacklevel=3)
    except ReflectPadWarning:  # -W error would turn `import torch` itself into a failure
        sys.stderr.write(f"mccl: {text}\n")
