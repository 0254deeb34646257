"""The device under test, as the check sees it.

:class:`Device` is a seam. The usual one wraps a ``torch.device``; tests subclass it to simulate
a device whose kernels are wrong, by running the device's share of the work under modes of their
own. The reference never runs inside :meth:`Device.active`.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

import torch

from mccl.errors import UsageError


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
        matmul = torch.backends.cuda.matmul.allow_tf32
        convolution = torch.backends.cudnn.allow_tf32
        return "TF32" if matmul or convolution else None

    def bitwise(self) -> bool:
        """Whether the same call twice must give the same bits.

        CUDA's atomic additions reorder by design (torch.use_deterministic_algorithms), so only
        differences beyond rounding count there.
        """
        return self.torch_device.type != "cuda"


def as_device(device: str | torch.device | Device) -> Device:
    """`device` itself, or the :class:`Device` for it."""
    return device if isinstance(device, Device) else Device(device)
