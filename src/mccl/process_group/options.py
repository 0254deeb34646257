"""c10d's option structs and overloads.

Every method of a c10d process group comes in up to three shapes: with an options struct (what
``torch.distributed`` and C++ pass), with the fields spelled out, and with a single tensor in
place of a list. These helpers turn the last two into the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch

from mccl.errors import UsageError

UNSET = timedelta(milliseconds=-1)
"""``kUnsetTimeout`` of c10d: the group's own timeout applies."""

_MICROSECOND = timedelta(microseconds=1)

Options = TypeVar("Options")


def microseconds(timeout: timedelta) -> int:
    """A timeout in whole microseconds, at least 1. Raises ``UsageError`` for a negative one."""
    value = timeout // _MICROSECOND
    if value < 0:
        raise UsageError(f"a timeout must not be negative, got {timeout}")
    return max(value, 1)


def resolve(
    kind: type[Options], given: Any, timeout: timedelta | None, *, field: str | None = None
) -> Options:
    """An options struct of ``kind`` from whatever stood in its place.

    ``given`` may be the struct, None, or (``field``) the value of that field alone.
    """
    if isinstance(given, kind):
        return given
    options = kind()
    if given is not None:
        if field is None:
            raise UsageError(f"expected {kind.__name__}, got {type(given).__name__}")
        try:
            setattr(options, field, given)
        except TypeError as error:
            raise UsageError(
                f"{given!r} cannot be {field} of {kind.__name__}; for PREMUL_SUM, which needs a "
                "factor, use torch.distributed._make_nccl_premul_sum(factor)"
            ) from error
    if timeout is not None:
        options.timeout = timeout  # type: ignore[attr-defined]
    return options


def one(tensors: Any, what: str) -> torch.Tensor:
    """The single tensor of a list that c10d wraps it in. Raises ``UsageError`` otherwise."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    if not isinstance(tensors, Sequence) or len(tensors) != 1:
        raise UsageError(
            f"{what} takes exactly one tensor a rank, got {_amount(tensors)}: one process drives "
            "one device; call it once for each tensor, or use the coalesced form"
        )
    tensor = tensors[0]
    if not isinstance(tensor, torch.Tensor):
        raise UsageError(f"{what} takes tensors, got {type(tensor).__name__}")
    return tensor


def nested(lists: Any, what: str) -> list[torch.Tensor]:
    """The inner list of a list of lists of tensors; a flat list is taken as it is."""
    if not isinstance(lists, Sequence):
        raise UsageError(f"{what} takes a list of tensors, got {type(lists).__name__}")
    if lists and isinstance(lists[0], torch.Tensor):
        return list(lists)
    if len(lists) != 1:
        raise UsageError(f"{what} takes one list of tensors a rank, got {_amount(lists)}")
    return list(lists[0])


def _amount(value: Any) -> str:
    return str(len(value)) if isinstance(value, Sequence) else type(value).__name__
