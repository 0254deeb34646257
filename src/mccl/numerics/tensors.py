"""Copies that keep a tensor's layout, and the pairing of a device's dtypes with the reference's.

A kernel may be wrong for one layout only (a stride it ignores, an offset it forgets), so whatever
is sent to the device keeps sizes, strides, overlap and alignment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

ALIGNMENT = 64
"""Elements of the storage offset that are kept: enough for any vector load a kernel aligns to."""

_COMPLEX_OF = {
    torch.float16: torch.complex32,
    torch.float32: torch.complex64,
    torch.float64: torch.complex128,
}


def wide(dtype: torch.dtype) -> torch.dtype:
    """The reference's dtype for `dtype`: float64, complex128, or `dtype` itself if integral."""
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def narrow(dtype: torch.dtype, real: torch.dtype) -> torch.dtype:
    """The device's dtype for the reference's `dtype`, where the device computes in `real`."""
    if dtype.is_complex:
        return _COMPLEX_OF.get(real, torch.complex64)
    return real if dtype.is_floating_point else dtype


def inexact(tensor: Tensor) -> bool:
    """Whether `tensor` holds floating or complex values (and so can have a gradient)."""
    return tensor.is_floating_point() or tensor.is_complex()


def _packed(tensor: Tensor) -> bool:
    """Whether the elements fill one run of memory, each once, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """`tensor` in `dtype`, finite values staying finite (a mask of ``finfo.min`` is not -inf)."""
    out = tensor.to(dtype)
    if dtype.is_floating_point and dtype != tensor.dtype and bool(out.isinf().any()):
        limit = torch.finfo(dtype).max
        clamped = tensor.clamp(-limit, limit).to(dtype)
        out = torch.where(tensor.isinf(), out, clamped)
    return out


def mirror(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A copy on `device` in `dtype` with the same sizes, strides and offset (mod 64).

    The copy shares nothing with `tensor` and has no gradient history.
    """
    source = tensor.detach()
    if source.layout is not torch.strided:
        return source.to(device=device, dtype=dtype, copy=True)
    source = source.resolve_conj().resolve_neg()
    if source.numel() == 0 or _packed(source):
        return cast(source, dtype).to(device=device, copy=True)
    offset = source.storage_offset() % ALIGNMENT
    reach = sum((n - 1) * s for n, s in zip(source.shape, source.stride(), strict=True))
    flat = source.as_strided((offset + reach + 1,), (1,), source.storage_offset() - offset)
    copy = cast(flat, dtype).to(device=device, copy=True)
    return copy.as_strided(source.shape, source.stride(), offset)


def leaves(tree: Any) -> list[Tensor]:
    """The tensors of a nest of containers, each once, in order."""
    found: dict[int, Tensor] = {}
    for leaf in pytree.tree_leaves(tree):
        if isinstance(leaf, Tensor):
            found.setdefault(id(leaf), leaf)
    return list(found.values())


def map_leaves(function: Any, tree: Any) -> Any:
    """`tree` with `function` applied to everything that is not a container."""
    return pytree.tree_map(function, tree)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal element for element, NaN equal to NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """``torch.set_default_dtype(dtype)`` for a block (global: it holds for other threads too)."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)
