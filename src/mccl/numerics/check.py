"""``check_model``: every operator of a model against float64, then the model as a whole."""

from __future__ import annotations

import fnmatch
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from mccl.errors import UsageError
from mccl.numerics.call import CPU, FAILURES, Call
from mccl.numerics.capture import Capture
from mccl.numerics.compare import Thresholds, coarsest
from mccl.numerics.device import Device, as_device
from mccl.numerics.findings import EndToEnd, Finding, Layer, Report
from mccl.numerics.judge import Judge
from mccl.numerics.progress import Progress
from mccl.numerics.whole import Whole, inputs_for, widened_model

KEPT_CALLS = 16
"""Findings that keep their inputs, for a script that reproduces them."""


def peak_bytes() -> int:
    """Largest resident size of this process so far, in bytes (getrusage)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def real_dtype(model: nn.Module, inputs: Any) -> torch.dtype:
    """The floating dtype the model computes in: its first parameter's, else its first input's."""
    for tensor in [*model.parameters(), *model.buffers(), *_tensors(inputs)]:
        if tensor.is_floating_point():
            return tensor.dtype
        if tensor.is_complex():
            return tensor.real.dtype
    return torch.float32


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def check_model(
    model: nn.Module,
    example_inputs: Sequence[Any],
    *,
    device: str | torch.device | Device = "cpu",
    example_kwargs: Mapping[str, Any] | None = None,
    thresholds: Mapping[torch.dtype, Thresholds] | None = None,
    layers: Sequence[str] = ("*",),
    end_to_end: bool = True,
    deterministic: bool = True,
    allow_tf32: bool = False,
    input_grad: bool = True,
    seed: int = 0,
    progress: bool = False,
) -> Report:
    """Check `model` on `device` against float64 on the CPU (paper §6.2), and say which layer lies.

    Args:
        model: any module, in training or evaluation mode as it will be used; it is copied, not
            changed. Its parameters' dtype is what the device computes in.
        example_inputs: positional arguments of ``forward`` at production shapes; tensors, and
            containers of them. Complex and integer tensors are fine.
        device: ``"mps"``, ``"cuda"``, ``"cpu"``, a ``torch.device``, or a
            :class:`~mccl.numerics.device.Device`.
        example_kwargs: keyword arguments of ``forward``.
        thresholds: limits by dtype, in place of :data:`mccl.numerics.compare.THRESHOLDS`.
        layers: patterns (``fnmatch``) of the layer names to check; the others only run.
        end_to_end: also run the whole model, forward and backward, on both sides.
        deterministic: run everything on the device twice; the results must be equal (on CUDA:
            equal up to the limits).
        allow_tf32: do not report products that a global setting rounds to TF32.
        input_grad: also check the gradients of floating inputs.
        seed: of cotangents and random layers.
        progress: show a progress bar on the standard error output.

    Each operator call is fed the reference's input and seeded normal gradients, so a fault is
    blamed on the layer that made the call. While it runs, no other thread may run modules: hooks
    and the default dtype are global.

    Raises:
        UsageError: the device is missing, the inputs are no sequence, or the model cannot be
            copied or run.
    """
    _require_tuple(example_inputs)
    target = as_device(device)
    kwargs = dict(example_kwargs or {})
    real = real_dtype(model, (tuple(example_inputs), kwargs))
    report = Report(type(model).__name__, target.name, str(real).removeprefix("torch."))
    begin = time.perf_counter()
    judge = Judge(
        target, seed, thresholds, target.bitwise(), deterministic, allow_tf32, report.notes
    )
    walk = _Walk(report, judge, layers)
    whole = Whole(model, tuple(example_inputs), kwargs, target, real, seed, input_grad, thresholds)
    with torch.random.fork_rng(devices=[]):
        total = _count(whole) if progress else 0
        walk.progress = Progress(total, enabled=progress)
        _walk(whole, walk.visit)
        walk.progress.close()
        if end_to_end:
            torch.manual_seed(seed)
            whole.coarse = walk.coarse
            report.end_to_end = whole.compare()
    _conclude(report)
    report.seconds = time.perf_counter() - begin
    report.peak_bytes = peak_bytes()
    report.sort()
    return report


def _require_tuple(inputs: Any) -> None:
    if not isinstance(inputs, list | tuple):
        raise UsageError(
            f"example_inputs is a {type(inputs).__name__}; expected a tuple of forward's "
            "arguments, such as (x,)"
        )


class _Walk:
    """Collects what the judge says of each call."""

    def __init__(self, report: Report, judge: Judge, patterns: Sequence[str]) -> None:
        self._report, self._judge, self._patterns = report, judge, patterns
        self.progress = Progress(0, enabled=False)
        self.coarse = torch.float64

    def visit(self, call: Call) -> list[torch.dtype] | None:
        """Judge `call` if its layer is asked for; its dtypes on the device."""
        self.progress.step(call.name or "(model)")
        if not any(fnmatch.fnmatchcase(call.name, pattern) for pattern in self._patterns):
            return None
        findings, seen, result = self._judge.judge(call)
        layer = self._report.layers.setdefault(call.name, Layer(call.name))
        layer.calls += 1
        self.coarse = coarsest([self.coarse, *(out.dtype for out in result.outputs)])
        self._report.calls += 1
        for phase, tensor, measured in seen:
            layer.see(call.op, phase, tensor, measured)
        for finding in findings:
            if len(self._report.findings) >= KEPT_CALLS:
                finding.call = None
            self._report.findings.append(finding)
        return [out.dtype for out in result.outputs] or None


def _walk(whole: Whole, visitor: Any) -> None:
    """Run the float64 copy of the model once, with `visitor` seeing every call."""
    torch.manual_seed(whole.seed)
    try:
        model = widened_model(whole.model)
    except RuntimeError as error:
        raise UsageError(
            f"the model cannot be copied: {error}. Give a model made afresh, and use "
            "torch.nn.utils.parametrizations instead of hooks that keep computed weights"
        ) from error
    named = [*whole.model.named_parameters(), *whole.model.named_buffers()]
    dtypes = {name: tensor.dtype for name, tensor in named}
    inputs, kwargs = (
        inputs_for(tree, real=None, place=CPU, grad=whole.input_grad)
        for tree in (whole.inputs, whole.kwargs)
    )
    capture = Capture(model, visitor, real=whole.real, dtypes=dtypes)
    for ours, given in zip(
        _tensors((inputs, kwargs)), _tensors((whole.inputs, whole.kwargs)), strict=True
    ):
        capture.remember(ours, given.dtype)
    try:
        with capture.attached():
            model(*inputs, **kwargs)
    except FAILURES as error:
        raise UsageError(
            f"the model's forward pass fails in float64 on the CPU, layer by layer: {error}. Try "
            "it with model.double() on the CPU; a forward pass that calls torch.autograd.grad "
            "cannot be checked"
        ) from error


def walk_calls(
    model: nn.Module,
    example_inputs: Sequence[Any],
    visit: Callable[[Call], None],
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    seed: int = 0,
    input_grad: bool = True,
) -> None:
    """Run `model` once in float64 on the CPU and show every call to `visit`; check nothing."""
    _require_tuple(example_inputs)
    kwargs = dict(example_kwargs or {})
    inputs = tuple(example_inputs)
    real = real_dtype(model, (inputs, kwargs))
    whole = Whole(model, inputs, kwargs, Device("cpu"), real, seed, input_grad)
    with torch.random.fork_rng(devices=[]):
        _walk(whole, visit)


def _count(whole: Whole) -> int:
    """How many calls the model makes, by running it without checking any."""
    seen: list[str] = []
    _walk(whole, lambda call: seen.append(call.name))
    return len(seen)


def _conclude(report: Report) -> None:
    """A model that is wrong as a whole, with every layer right, is a finding of its own."""
    whole: EndToEnd | None = report.end_to_end
    if whole is None or whole.ok or report.findings:
        return
    backward = whole.gradient_error >= whole.output_error
    report.findings.append(
        Finding(
            name="",
            op="(end to end)",
            phase="backward" if backward else "forward",
            tensor=whole.gradient if backward else "output",
            kind="wrong" if whole.comparable else "error",
            cosine=whole.gradient_cosine if backward else whole.output_cosine,
            relative_error=whole.gradient_error if backward else whole.output_error,
            element_error=float("nan"),
            shape=(),
            dtype=report.dtype,
            explanation="end to end: every operator alone is right and the model as a whole is "
            f"not. {whole.explanation}".rstrip(),
        )
    )
