"""Test data whose every sum, product and mean is exact in every dtype."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
REDUCIBLE = (*FLOATS, *INTEGERS)
MOVED = (
    *REDUCIBLE,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (0,), (7,), (3, 5), (2, 0, 3), (129,), (64, 5))
LARGE = (80_001,)
"""Above the default small-message threshold from 4-byte elements on."""


def values(rank: int, shape: Sequence[int], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Integers 1 to 3 (bool: mixed), different on every rank and position."""
    count = 1
    for extent in shape:
        count *= extent
    numbers = (torch.arange(count) * 7 + rank * 5 + seed) % 11 % 3 + 1
    if dtype is torch.bool:
        return (numbers == 2).reshape(tuple(shape))
    if dtype.is_complex:
        return torch.complex(numbers.double(), (numbers * 2 - 1).double()).to(dtype).reshape(shape)
    return numbers.to(dtype).reshape(tuple(shape))


def layouts(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors equal to ``tensor`` in memory of different shape."""
    yield "contiguous", tensor.clone(memory_format=torch.contiguous_format)
    padded = tensor.new_zeros((*tensor.shape, 2))
    padded[..., 0] = tensor
    yield "strided", padded[..., 0]
    if tensor.dim() >= 2:
        yield "transposed", tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if tensor.dim() >= 1:
        longer = torch.cat([tensor[:0], tensor, tensor[: min(1, tensor.shape[0])]])
        yield (
            "offset",
            torch.cat([tensor[:1], longer])[min(1, tensor.shape[0]) :][: tensor.shape[0]],
        )


def combined(inputs: Sequence[torch.Tensor], op: object) -> torch.Tensor:
    """The exact reduction of ``inputs``, computed in a wide dtype."""
    dtype = inputs[0].dtype
    wide = dtype if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64
    total = inputs[0].to(wide)
    for tensor in inputs[1:]:
        other = tensor.to(wide)
        if op in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            total = total + other
        elif op == dist.ReduceOp.PRODUCT:
            total = total * other
        elif op == dist.ReduceOp.MIN:
            total = torch.minimum(total, other)
        elif op == dist.ReduceOp.MAX:
            total = torch.maximum(total, other)
        elif op == dist.ReduceOp.BAND:
            total = total & other
        elif op == dist.ReduceOp.BOR:
            total = total | other
        else:
            total = total ^ other
    if op == dist.ReduceOp.AVG:
        if dtype.is_floating_point or dtype.is_complex:
            total = total / len(inputs)
        else:
            total = torch.div(total, len(inputs), rounding_mode="trunc")
    return total.to(dtype)


def same(actual: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """Assert equality of every bit of every element."""
    assert actual.shape == expected.shape, (what, actual.shape, expected.shape)
    left, right = _bytes(actual), _bytes(expected)
    assert torch.equal(left, right), (what, actual.flatten()[:20], expected.flatten()[:20])


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    plain = torch.empty(tensor.numel(), dtype=tensor.dtype)
    plain.copy_(tensor.reshape(-1))
    return plain.view(torch.uint8)
