"""A device's own dropout kernel, whose mask no other device can repeat.

Elsewhere masks are replayed, so the kernel that draws them is not exercised. Here it is: over an
input of ones the output *is* the scaled mask, and the gradient of ones must be the same mask.
"""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from mccl.numerics.call import FAILURES, Call, Slot
from mccl.numerics.device import Device

SIGMAS = 8.0
"""Standard deviations that the share of kept elements may be off (1e-15 of all fair draws)."""


def _probability(call: Call) -> float | None:
    if call.func is not functional.dropout or not isinstance(call.args[0], Slot):
        return None
    names = ("input", "p", "training", "inplace")
    values = {"p": 0.5, "training": True} | dict(zip(names, call.args, strict=False))
    values |= call.kwargs
    return float(values["p"]) if values["training"] else None


def dropout_fault(call: Call, device: Device) -> tuple[str, str] | None:
    """(phase, what is wrong) for a call of ``F.dropout`` in training, or None.

    Checks that kept values are scaled by 1/(1-p), that their share is right, and that the
    backward pass uses the forward pass's mask.
    """
    p = _probability(call)
    if p is None or not 0.0 < p < 1.0:
        return None
    shape = call.tensors[call.args[0].index].shape
    ones = torch.ones(shape, device=device.torch_device, dtype=call.real, requires_grad=True)
    try:
        with torch.enable_grad(), device.active():
            out = functional.dropout(ones, p, True)
            (grad,) = torch.autograd.grad(out, ones, torch.ones_like(out))
        mask, back = out.detach().cpu().double(), grad.cpu().double()
    except FAILURES as error:
        return "forward", f"dropout alone fails: {type(error).__name__}: {error}"
    kept = mask != 0
    n, share = mask.numel(), float(kept.double().mean())
    scale = 1.0 / (1.0 - p)
    if bool(kept.any()) and float((mask[kept] - scale).abs().max()) > 0.01 * scale:
        return "forward", f"dropout scales what it keeps by something else than {scale:g}"
    if abs(share - (1.0 - p)) > SIGMAS * math.sqrt(p * (1.0 - p) / max(n, 1)) + 1.0 / max(n, 1):
        return "forward", f"dropout keeps {share:.3f} of the values instead of {1.0 - p:.3f}"
    if not torch.equal(mask, back):
        return "backward", "dropout's backward pass uses another mask than its forward pass"
    return None
