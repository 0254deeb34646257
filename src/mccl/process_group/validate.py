"""Checks of what a caller passes, made before anything is sent.

A wrong argument must fail on the rank that made it, at once, naming the thing, what was
expected and what to do; a rank whose arguments are right must not be left waiting longer than
its own timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from mccl.errors import UsageError
from mccl.plans import Request

_is_wrapper: Callable[[object], bool] = is_traceable_wrapper_subclass
_ORDINARY = (torch.Tensor, torch.nn.Parameter)


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor whose memory is meant: finishes a pending functional collective first.

    Raises ``UsageError`` for wrappers that have no memory of their own.
    """
    if type(tensor) in _ORDINARY:
        return tensor
    if isinstance(tensor, AsyncCollectiveTensor):
        return tensor.wait()
    if _is_wrapper(tensor):
        raise UsageError(
            f"a {type(tensor).__name__} has no memory of its own that could be sent: pass its "
            "local tensor (for a DTensor: .to_local())"
        )
    return tensor


def same_dtype(tensors: Sequence[torch.Tensor], what: str) -> torch.dtype:
    """The dtype of all ``tensors``. Raises ``UsageError`` (a ValueError) when they differ."""
    first = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype != first:
            raise UsageError(
                f"Invalid usage of tensors with different dtypes in {what}: found {first} and "
                f"{tensor.dtype}; convert them to one dtype first"
            )
    return first


def root_rank(root: int, size: int, what: str) -> int:
    """``root`` if it is a group rank."""
    if not 0 <= root < size:
        raise UsageError(f"{what}: root rank {root} is not in the group; expected 0 to {size - 1}")
    return int(root)


def list_length(tensors: Sequence[torch.Tensor], size: int, what: str, role: str) -> None:
    """Raise ``UsageError`` unless there is one tensor a rank."""
    if len(tensors) != size:
        raise UsageError(
            f"{what}: the {role} list has {len(tensors)} tensors; expected one for each of the "
            f"{size} ranks"
        )


def numel(tensor: torch.Tensor, expected: int, what: str, role: str) -> None:
    """Raise ``UsageError`` unless ``tensor`` has ``expected`` elements."""
    if tensor.numel() != expected:
        raise UsageError(
            f"{what}: {role} of shape {tuple(tensor.shape)} has {tensor.numel()} elements; "
            f"expected {expected}"
        )


def disjoint(outputs: Sequence[torch.Tensor], what: str) -> None:
    """Raise ``UsageError`` when two results would be written to the same memory.

    Interleaved views (columns of one matrix) are allowed: they span the same bytes without
    sharing an element, so only contiguous tensors, and equal views, are compared.
    """
    spans: list[tuple[str, int, int, int]] = []
    views: dict[tuple[str, int, tuple[int, ...], tuple[int, ...]], int] = {}
    for index, tensor in enumerate(outputs):
        if tensor.numel() == 0 or tensor.layout != torch.strided:
            continue
        start, device = tensor.data_ptr(), str(tensor.device)
        view = (device, start, tuple(tensor.shape), tensor.stride())
        if view in views:
            raise _overlap(what, views[view], index)
        views[view] = index
        if tensor.is_contiguous():
            spans.append((device, start, start + tensor.nbytes, index))
    spans.sort()
    for (device, _, end, left), (other, start, _, right) in pairwise(spans):
        if device == other and start < end:
            raise _overlap(what, left, right)


def _overlap(what: str, left: int, right: int) -> UsageError:
    return UsageError(
        f"{what}: outputs {left} and {right} share memory, so one result would overwrite the "
        "other; allocate a tensor of its own for each"
    )


def split_sizes(
    tensor: torch.Tensor, splits: Sequence[int], size: int, what: str, role: str
) -> tuple[int, ...]:
    """Elements for (or from) each rank, from split sizes along dimension 0; none means even."""
    if tensor.dim() == 0:
        raise UsageError(f"{what}: {role} must have a dimension to split, got a 0-d tensor")
    rows = tensor.shape[0]
    if not splits:
        if rows % size:
            raise UsageError(
                f"{what}: Tensor's dim 0 does not divide equally across group size: {role} has "
                f"{rows} rows for {size} ranks; pass split sizes"
            )
        return (tensor.numel() // size,) * size
    if len(splits) != size:
        raise UsageError(
            f"{what}: Number of tensor splits not equal to group size: {role} has {len(splits)} "
            f"split sizes for {size} ranks"
        )
    if any(split < 0 for split in splits):
        raise UsageError(f"{what}: {role} split sizes must not be negative, got {list(splits)}")
    if sum(splits) != rows:
        raise UsageError(
            f"{what}: Split sizes doesn't match total dim 0 size: {role} splits {list(splits)} "
            f"sum to {sum(splits)}, but its dimension 0 is {rows}"
        )
    row = tensor.numel() // rows if rows else 0
    return tuple(int(split) * row for split in splits)


def own_piece(request: Request, rank: int, what: str) -> None:
    """Raise ``UsageError`` unless a rank's piece for itself has the size it expects."""
    send, recv = request.sizes, request.recv_sizes
    if isinstance(send, int) or recv is None or isinstance(recv, int):
        return
    if send[rank] != recv[rank]:
        raise UsageError(
            f"{what}: rank {rank} sends itself {send[rank]} elements but expects {recv[rank]} "
            "from itself; the two must be equal"
        )


def paired(outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], what: str) -> None:
    """Raise ``UsageError`` unless the lists have one length, not zero, and one dtype."""
    if len(outputs) != len(inputs) or not inputs:
        raise UsageError(
            f"{what}: {len(outputs)} outputs for {len(inputs)} inputs; expected as many, and at "
            "least one"
        )
    same_dtype([*inputs, *outputs], what)


def peer(rank: int, size: int, what: str) -> int:
    """``rank`` if it is a group rank."""
    if not 0 <= rank < size:
        raise UsageError(f"{what}: peer {rank} is not in the group; expected 0 to {size - 1}")
    return int(rank)


def tag(value: int, what: str) -> int:
    """``value`` if it can be a tag."""
    if value < 0:
        raise UsageError(f"{what}: a tag must not be negative, got {value}")
    return int(value)
