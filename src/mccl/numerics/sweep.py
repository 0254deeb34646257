"""Run a model's calls again at lengths around powers of two.

Index faults show at one length and not at the next (paper §6.2: from 65,536 samples on, but for
one mono signal at exact multiples). So each call that works along its last axis is repeated with
that axis at 2^15, 2^16, 2^17 and one to either side, for 1, 2 and 4 batch items and channels.
"""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from mccl.errors import UsageError
from mccl.numerics.call import FAILURES, Call, run_reference
from mccl.numerics.check import walk_calls
from mccl.numerics.device import Device, as_device
from mccl.numerics.findings import Finding
from mccl.numerics.judge import Judge
from mccl.numerics.progress import Progress
from mccl.numerics.table import columns, layer_name
from mccl.numerics.tensors import inexact

LENGTHS = tuple(2**k + d for k in (15, 16, 17) for d in (-1, 0, 1))
COUNTS = (1, 2, 4)


@dataclass(frozen=True)
class Point:
    """One call at one shape, and what was wrong there (None: nothing)."""

    name: str
    op: str
    shape: tuple[int, ...]
    finding: Finding | None


@dataclass
class Sweep:
    """All points. ``str()`` is a table of the wrong ones and what they have in common."""

    device: str
    points: list[Point] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def failures(self) -> list[Point]:
        """The points where the device is wrong."""
        return [point for point in self.points if point.finding is not None]

    @property
    def ok(self) -> bool:
        """Nothing wrong anywhere."""
        return not self.failures

    @property
    def exit_code(self) -> int:
        """0 when ok, else 1."""
        return 0 if self.ok else 1

    def __str__(self) -> str:
        calls = {(point.name, point.op) for point in self.points}
        lines = [f"sweep on {self.device}: {len(self.points)} shapes of {len(calls)} calls, "
                 f"{len(self.failures)} wrong"]  # fmt: skip
        rows = [["layer", "op", "shape", "phase", "tensor", "cosine", "rel. error"]]
        for point in self.failures:
            found = point.finding
            if found is not None:
                rows.append([
                    layer_name(point.name), point.op, "x".join(map(str, point.shape)), found.phase,
                    found.tensor, f"{found.cosine:.6f}", f"{found.relative_error:.2e}",
                ])  # fmt: skip
        if len(rows) > 1:
            lines += ["", *columns(rows), ""]
        lines += [self._pattern(name, op) for name, op in sorted(calls)]
        lines += [f"not swept: {text}" for text in self.skipped]
        return "\n".join(lines)

    def _pattern(self, name: str, op: str) -> str:
        mine = [p for p in self.points if (p.name, p.op) == (name, op)]
        bad = [p for p in mine if p.finding is not None]
        head = f"{layer_name(name)} {op}: "
        if not bad:
            return head + f"right at all {len(mine)} shapes"
        shortest = min(p.shape[-1] for p in bad)
        longest_right = max((p.shape[-1] for p in mine if p.finding is None), default=0)
        rest = [p for p in mine if p.shape[-1] >= shortest and p.finding is None]
        text = head + f"wrong from length {shortest} on"
        if rest:
            shapes = ", ".join("x".join(map(str, p.shape)) for p in rest[:6])
            text += f", but right at {shapes}"
        return text + (f" (longest right length {longest_right})" if longest_right else "")


def sweep_model(
    model: nn.Module,
    example_inputs: Sequence[Any],
    *,
    device: str | torch.device | Device = "cpu",
    layers: Sequence[str] = ("*",),
    lengths: Sequence[int] = LENGTHS,
    batches: Sequence[int] = COUNTS,
    channels: Sequence[int] = COUNTS,
    seed: int = 0,
    progress: bool = False,
) -> Sweep:
    """Repeat the calls of the chosen `layers` at `lengths`, and compare each with float64.

    A call is swept if its first floating tensor has 1 to 3 dimensions and the call still works
    when that tensor (and any of the same shape) is resized to ``(batch, channel, length)``, cut to
    its number of dimensions. Where the channels are fixed by a weight, only the length changes.

    Args:
        layers: patterns (``fnmatch``) of layer names. The others as in
            :func:`mccl.numerics.check_model`.

    Raises:
        UsageError: no call of the layers can be swept.
    """
    target = as_device(device)
    result = Sweep(target.name)
    calls: dict[Any, Call] = {}

    def remember(call: Call) -> None:
        if any(fnmatch.fnmatchcase(call.name, pattern) for pattern in layers):
            calls.setdefault((call.name, call.op, repr(call.kwargs)), call)

    walk_calls(model, example_inputs, remember, seed=seed)
    judge = Judge(target, seed, deterministic=False)
    bar = Progress(len(calls) * len(lengths), enabled=progress)
    for call in calls.values():
        before = len(result.points)
        for length in lengths:
            bar.step(f"{layer_name(call.name)} {length}")
            _at_length(result, judge, call, length, batches, channels)
        if len(result.points) == before:
            result.skipped.append(f"{layer_name(call.name)} {call.op} (does not take the lengths)")
    bar.close()
    if not result.points:
        raise UsageError(
            f"nothing to sweep in layers {list(layers)}: no call takes the lengths "
            f"{list(lengths)} along its last axis. Name layers that work along time"
        )
    return result


def _at_length(
    result: Sweep,
    judge: Judge,
    call: Call,
    length: int,
    batches: Sequence[int],
    channels: Sequence[int],
) -> None:
    for shape in _shapes(call, length, batches, channels):
        resized = _resized(call, shape)
        try:
            run_reference(resized, judge.seed)
        except FAILURES:  # this shape is not one the call takes
            continue
        findings, _, _ = judge.judge(resized)
        worst = min(findings, key=Finding.severity, default=None)
        if worst is not None:
            worst.call = None
        result.points.append(Point(call.name, call.op, shape, worst))


def _main(call: Call) -> Tensor | None:
    found = next((t for t in call.tensors if inexact(t)), None)
    return found if found is not None and 1 <= found.dim() <= 3 else None


def _shapes(
    call: Call, length: int, batches: Sequence[int], channels: Sequence[int]
) -> list[tuple[int, ...]]:
    main = _main(call)
    if main is None:
        return []
    free = [(b, c, length)[3 - main.dim() :] for b, c in itertools.product(batches, channels)]
    fixed = [(b, main.shape[1], length) for b in batches] if main.dim() == 3 else []
    return list(dict.fromkeys([*free, *fixed]))


def _resized(call: Call, shape: tuple[int, ...]) -> Call:
    main = _main(call)
    assert main is not None
    generator = torch.Generator().manual_seed(len(shape) * 7919 + sum(shape))

    def resize(tensor: Tensor) -> Tensor:
        if tensor.shape != main.shape or not inexact(tensor):
            return tensor
        dtype = torch.complex64 if tensor.is_complex() else torch.float32
        return torch.randn(shape, generator=generator, dtype=dtype).to(tensor.dtype)

    return replace(call, tensors=[resize(tensor) for tensor in call.tensors])
