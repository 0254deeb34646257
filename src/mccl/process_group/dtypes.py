"""torch dtypes and reduce operations in the engine's words."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.distributed import ReduceOp

from mccl.engine import DType, RedOp, reduce_supported
from mccl.errors import UsageError

NATIVE: dict[torch.dtype, DType] = {
    torch.uint8: DType.U8,
    torch.int8: DType.I8,
    torch.int16: DType.I16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.bool: DType.BOOL,
    torch.complex64: DType.C64,
    torch.complex128: DType.C128,
}
"""dtypes the engine can add."""

_BY_SIZE = {1: DType.U8, 2: DType.I16, 4: DType.I32, 8: DType.I64, 16: DType.C128}

WIRE: dict[str, DType] = {"bfloat16": DType.BF16, "float16": DType.F16}
"""What ``MCCL_WIRE_DTYPE`` may name."""

LOW_PRECISION = frozenset({DType.F16, DType.BF16})


def moved_as(dtype: torch.dtype) -> DType:
    """A dtype of the same size for collectives that only move bytes: every dtype has one."""
    native = NATIVE.get(dtype)
    return _BY_SIZE[dtype.itemsize] if native is None else native


class Reduction(NamedTuple):
    """A reduce operation; ``premul`` is the factor of PREMUL_SUM, else 1."""

    redop: RedOp
    premul: float = 1.0


_BY_HASH: dict[int, RedOp] = {
    hash(ReduceOp(kind)): redop
    for kind, redop in (
        (ReduceOp.SUM, RedOp.SUM),
        (ReduceOp.AVG, RedOp.AVG),
        (ReduceOp.PRODUCT, RedOp.PRODUCT),
        (ReduceOp.MIN, RedOp.MIN),
        (ReduceOp.MAX, RedOp.MAX),
        (ReduceOp.BAND, RedOp.BAND),
        (ReduceOp.BOR, RedOp.BOR),
        (ReduceOp.BXOR, RedOp.BXOR),
    )
}
"""torch gives every kind of ``ReduceOp`` its own hash; PREMUL_SUM alone carries more state."""


def reduction(op: Any) -> Reduction:
    """The engine's words for a ``ReduceOp``. Raises ``UsageError`` for one it does not know."""
    redop = _BY_HASH.get(hash(op))
    if redop is not None:
        return Reduction(redop)
    if op == ReduceOp.PREMUL_SUM:
        return Reduction(RedOp.PREMUL_SUM, _factor(op))
    raise UsageError(
        f"reduce operation {op} is not known; accepted: {', '.join(known.name for known in RedOp)}"
    )


def _factor(op: Any) -> float:
    # torch keeps a number or a tensor of one element; only pickling shows it in every version.
    factor = op.__getstate__()[1]
    return float(factor.item() if isinstance(factor, torch.Tensor) else factor)


def reduced_as(dtype: torch.dtype, op: Reduction) -> DType:
    """The engine's dtype for a reduction. Raises ``UsageError`` naming what is accepted."""
    native = NATIVE.get(dtype)
    if native is not None and reduce_supported(native, op.redop):
        return native
    accepted = ", ".join(
        str(known).removeprefix("torch.")
        for known, code in NATIVE.items()
        if reduce_supported(code, op.redop)
    )
    raise UsageError(
        f"{op.redop.name} of {dtype} is not supported; accepted dtypes for {op.redop.name}: "
        f"{accepted}. Convert the tensor first"
    )
