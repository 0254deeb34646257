"""A reflection padding with right gradients, to put in the place of torch's on MPS.

On torch before 2.15, ``F.pad(mode="reflect")`` on MPS is exact forward and wrong backward from
2^16 samples on (paper §6.2). The backward pass here uses slices, flips and additions only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from mccl.numerics.guard import affected, torch_version

_MARK = "_mccl_original"


def fold_reflection(grad: Tensor, padding: Sequence[int]) -> Tensor:
    """Adjoint of reflection padding: fold each edge of `grad` back onto the inside.

    padding: (left, right) of the last dimension, then of the one before, as in ``F.pad``.
    """
    for i in range(len(padding) // 2):
        dim = grad.dim() - 1 - i
        left, right = padding[2 * i], padding[2 * i + 1]
        length = grad.shape[dim] - left - right
        out = grad.narrow(dim, left, length).clone()
        if left:
            out.narrow(dim, 1, left).add_(grad.narrow(dim, 0, left).flip(dim))
        if right:
            edge = grad.narrow(dim, left + length, right).flip(dim)
            out.narrow(dim, length - 1 - right, right).add_(edge)
        grad = out
    return grad


class ReflectPad(torch.autograd.Function):
    """torch's forward pass (which is exact), and :func:`fold_reflection` backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, padding: tuple[int, ...], pad: Callable[..., Tensor]
    ) -> Tensor:
        ctx.padding = padding
        return pad(x, padding, "reflect")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return fold_reflection(grad, ctx.padding), None, None


def patch_reflect_pad(*, devices: Sequence[str] = ("mps",), force: bool = False) -> bool:
    """Make ``F.pad(mode="reflect")`` right on `devices`; everything that calls it follows.

    ``torch.stft`` (centred), ``nn.ReflectionPad1d`` to ``3d`` and padded convolutions all call
    ``torch.nn.functional.pad`` by name, and so get the replacement. Double backward is not offered
    by it. Calling it again does nothing.

    Args:
        devices: device types on which to replace it.
        force: patch a torch that is thought to be right as well.

    Returns:
        Whether the patch is in place; False on a torch that does not need it.
    """
    original = functional.pad
    if hasattr(original, _MARK):
        return True
    if not force and not affected(torch_version()):
        return False
    kinds = frozenset(devices)

    @functools.wraps(original)
    def pad(
        input: Tensor,
        pad: Sequence[int],
        mode: str = "constant",
        value: float | None = None,
    ) -> Tensor:
        wanted = mode == "reflect" and input.device.type in kinds
        if not wanted or not input.requires_grad or not torch.is_grad_enabled():
            return original(input, pad, mode, value)
        result: Tensor = ReflectPad.apply(input, tuple(pad), original)  # type: ignore[no-untyped-call]
        return result

    setattr(pad, _MARK, original)
    functional.pad = pad
    return True


def unpatch_reflect_pad() -> None:
    """Put torch's own ``F.pad`` back."""
    functional.pad = getattr(functional.pad, _MARK, functional.pad)
