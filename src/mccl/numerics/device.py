"""The device under test, as the check sees it.

:class:`Device` is a seam. The usual one wraps a ``torch.device``; tests subclass it to simulate
a device whose kernels are wrong, by running the device's share of the work under modes of their
own. The reference never runs inside :meth:`Device.active`.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import torch

from mccl.errors import UsageError


def tf32_enabled() -> bool:
    """Whether any of CUDA's float32 products (matrix, convolution, recurrent) may use TF32.

    Read through ``fp32_precision``: once a program has used it, reading ``allow_tf32`` raises.
    """
    backends: Any = torch.backends
    everything = backends.fp32_precision
    for part, parent in (
        (backends.cuda.matmul, everything),
        (backends.cudnn.conv, backends.cudnn.fp32_precision),
        (backends.cudnn.rnn, backends.cudnn.fp32_precision),
    ):
        chain = (part.fp32_precision, parent, everything)
        if next((value for value in chain if value != "none"), "ieee") == "tf32":
            return True
    return False


class Device:
    """A ``torch.device`` and what must be known about it.

    Raises:
        UsageError: the device is not there.
    """

    def __init__(self, device: str | torch.device) -> None:
        try:
            self.torch_device = torch.device(device)
        except RuntimeError as error:
            raise UsageError(f"device {device!r} is not one torch knows: {error}") from error
        self.name = str(device)
        self._require()

    def _require(self) -> None:
        kind = self.torch_device.type
        there = {
            "cpu": True,
            "cuda": torch.cuda.is_available(),
            "mps": torch.backends.mps.is_available(),
        }.get(kind)
        if there is None:
            there = torch.get_device_module(kind).is_available()
        if not there:
            raise UsageError(
                f"device {self.name!r} is not available here; expected one that this torch "
                f"({torch.__version__}) can use. Run the check on the machine that has it."
            )

    def active(self) -> AbstractContextManager[object]:
        """Entered around everything that runs on the device."""
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        """Return when the device has finished its work."""
        if self.torch_device.type != "cpu":
            torch.get_device_module(self.torch_device.type).synchronize()

    def reduced_precision(self) -> str | None:
        """Name of a mode in which float32 products are rounded to less, or None."""
        if self.torch_device.type != "cuda":
            return None
        return "TF32" if tf32_enabled() else None

    def bitwise(self) -> bool:
        """Whether the same call twice must give the same bits.

        CUDA's atomic additions reorder by design (torch.use_deterministic_algorithms), so only
        differences beyond rounding count there.
        """
        return self.torch_device.type != "cuda"


def as_device(device: str | torch.device | Device) -> Device:
    """`device` itself, or the :class:`Device` for it."""
    return device if isinstance(device, Device) else Device(device)
