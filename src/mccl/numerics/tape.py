"""The same random numbers for two runs: record what one run drew, hand it to the other.

CPU and GPU generators give different streams from the same seed, and a float64 draw need not
match a float32 one, so seeds are not enough. Every operator that torch tags as seeded is
intercepted below autograd: the reference run writes its draws to the tape, the device run reads
them back. Backward passes then use the same masks as well.

Only draws are read back, never a result: attention kernels carry the tag for the dropout inside
them, and without dropout they run on the device like everything else. With dropout they would draw
a mask that nobody else can see, so attention then takes the path of separate operators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from mccl.numerics.tensors import map_leaves


class TapeMismatchError(Exception):
    """The device drew other random tensors than the reference did, or in another order."""


def _draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call draws random numbers; some operators do in training only."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    for position, argument in enumerate(func._schema.arguments):
        value = kwargs.get(argument.name, argument.default_value)
        if position < len(args):
            value = args[position]
        if argument.name in _PROBABILITIES and value == 0:
            return False
        if argument.name in _SWITCHES and value is False:
            return False
    return True


_PROBABILITIES = {"dropout_p", "dropout"}
_SWITCHES = {"train", "training"}


class Tape:
    """Draws in the order they were made; `replay` starts again from the first."""

    def __init__(self) -> None:
        self._drawn: list[Any] = []

    def record(self) -> TorchDispatchMode:
        """A mode under which draws are made and kept."""
        self._drawn.clear()
        return _Record(self._drawn)

    def replay(self) -> TorchDispatchMode:
        """A mode under which draws are those of :meth:`record`, in the same order.

        Raises:
            TapeMismatchError: while running, when a draw has no partner of its shape.
        """
        return _Replay(self._drawn)


class _Record(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, drawn: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._drawn = drawn

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if _draws(func, args, kwargs or {}):
            self._drawn.append(map_leaves(_keep, out))
        return out


def _keep(leaf: Any) -> Any:
    return leaf.detach().to("cpu", copy=True) if isinstance(leaf, Tensor) else leaf


class _Replay(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, drawn: list[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._drawn = drawn
        self._next = 0
        self._kernels = contextlib.ExitStack()

    def __enter__(self) -> Any:
        if self._drawn:
            self._kernels.enter_context(sdpa_kernel(SDPBackend.MATH))
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        self._kernels.close()

    def _take(self) -> Any:
        if self._next == len(self._drawn):
            raise TapeMismatchError("the device draws more often than the reference")
        self._next += 1
        return self._drawn[self._next - 1]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if not _draws(func, args, keywords):
            return func(*args, **keywords)
        drawn = self._take()
        if func is torch.ops.aten.native_dropout.default:
            return _fused_dropout(args[0], args[1], drawn)
        if func._schema.is_mutable and isinstance(args[0], Tensor):
            _expect(args[0], drawn)
            return args[0].copy_(drawn)
        likeness = next((a for a in args if isinstance(a, Tensor)), None)
        device = keywords.get("device") or (likeness.device if likeness is not None else "cpu")
        dtype = keywords.get("dtype") or (likeness.dtype if likeness is not None else None)

        def place(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            if leaf.is_floating_point():
                return leaf.to(device=device, dtype=dtype or torch.get_default_dtype())
            return leaf.to(device=device)

        return map_leaves(place, drawn)


def _expect(target: Tensor, drawn: Any) -> None:
    if not isinstance(drawn, Tensor) or drawn.shape != target.shape:
        shape = tuple(drawn.shape) if isinstance(drawn, Tensor) else type(drawn).__name__
        raise TapeMismatchError(
            f"the device draws {tuple(target.shape)} where the reference drew {shape}"
        )


def _fused_dropout(x: Tensor, p: float, drawn: Any) -> tuple[Tensor, Tensor]:
    """A GPU's one-kernel dropout, with the mask that the CPU drew for its two-kernel one."""
    mask = drawn if isinstance(drawn, Tensor) else drawn[1]
    _expect(x, mask)
    kept = mask.to(device=x.device, dtype=torch.bool)
    return x * kept / max(1.0 - p, torch.finfo(torch.float64).tiny), kept
