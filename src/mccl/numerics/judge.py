"""Judge one call: run it in float64, run it on the device twice, compare everything.

Theory of operation. A difference beyond the limits is a finding only if rounding cannot explain
it. Rounding is measured, not guessed: the reference runs again with every input and cotangent
moved by one rounding step of the device's dtype, up or down at random. An ill-conditioned call (a
difference of nearly equal numbers, a sum of terms that cancel) moves far and is let off with a
note; a wrong kernel does not. The same measurement with TF32's rounding step tells a
float32 product that a global setting rounds to ten bits from one that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mccl.numerics.call import FAILURES, Call, Result, run_device, run_reference
from mccl.numerics.compare import Measure, Thresholds, coarsest, measure, thresholds_for
from mccl.numerics.device import Device
from mccl.numerics.dropout import dropout_fault
from mccl.numerics.findings import Finding
from mccl.numerics.tape import Tape, TapeMismatchError
from mccl.numerics.tensors import inexact, same_bits

ROUNDING_FACTOR = 32.0
"""Multiples of one rounding step's effect that the device may be off: it rounds many times."""

TF32_STEP = 2.0**-11
TF32_FACTOR = 4.0
DRAWS = 2
"""How often the rounding experiment is repeated; the larger effect counts."""


@dataclass
class Judge:
    """Limits and device of one check. `notes` collects what is no finding."""

    device: Device
    seed: int = 0
    overrides: Mapping[torch.dtype, Thresholds] | None = None
    bitwise: bool = True
    deterministic: bool = True
    allow_tf32: bool = False
    notes: list[str] = field(default_factory=list)

    def judge(self, call: Call) -> tuple[list[Finding], list[tuple[str, str, Measure]], Result]:
        """Findings, every comparison as (phase, tensor, measure), and the device's result."""
        tape = Tape() if call.random else None
        try:
            reference = run_reference(call, self.seed, tape)
        except FAILURES as error:
            self._note(call, f"not checked, float64 reference failed: {error}")
            return [], [], Result()
        case = _Case(self, call, tape, reference)
        case.dropout()
        try:
            actual = run_device(call, self.device, reference, tape)
            again = run_device(call, self.device, reference, tape) if self.deterministic else actual
        except TapeMismatchError as error:
            self._note(call, f"not compared, its random numbers cannot be replayed: {error}")
            return case.findings, [], Result()
        case.actual = actual
        if actual.error is not None:
            return [case.refusal(actual.error)], [], actual
        case.values()
        case.gradients()
        case.repeat(again)
        return case.findings, case.seen, actual

    def _note(self, call: Call, text: str) -> None:
        line = f"{call.name or '(model)'}: {call.op}: {text}".splitlines()[0]
        if line not in self.notes:
            self.notes.append(line)


class _Case:
    """The comparisons of one call."""

    def __init__(self, judge: Judge, call: Call, tape: Tape | None, reference: Result) -> None:
        self.rules, self.call, self.tape = judge, call, tape
        self.reference, self.actual = reference, Result()
        self.findings: list[Finding] = []
        self.seen: list[tuple[str, str, Measure]] = []
        self._shaken: dict[float, list[Result]] = {}

    def dropout(self) -> None:
        """The device's own dropout, masks not replayed."""
        fault = dropout_fault(self.call, self.rules.device)
        if fault is not None:
            self.add(fault[0], "output", "wrong", self.call.tensors[0], None, fault[1])

    def values(self) -> None:
        """Forward: outputs, and inputs changed in place."""
        pairs = list(zip(self.actual.outputs, self.reference.outputs, strict=False))
        if len(self.actual.outputs) != len(self.reference.outputs):
            text = f"{len(self.actual.outputs)} outputs instead of {len(self.reference.outputs)}"
            self.add("forward", "output", "shape", self.call.tensors[0], None, text)
        floating_fine = True
        for i, (x, ref) in enumerate(pairs):
            if inexact(x) or inexact(ref):
                floating_fine &= self._compare("forward", self.reference.labels[i], x, ref, i)
        with_values = any(inexact(x) for x in self.actual.outputs)
        for i, (x, ref) in enumerate(pairs):
            # Of equal values a sort or a pooling may name either: with right values, so be it.
            excused = with_values and floating_fine
            if not inexact(x) and not inexact(ref) and not excused and not torch.equal(x, ref):
                label = self.reference.labels[i]
                found = measure(x, ref)
                self.add("forward", label, "shape" if found.shape else "integer", x, found)

    def gradients(self) -> None:
        """Backward: a gradient for every input that the reference has one for."""
        for i, ref in enumerate(self.reference.grads):
            grad = self.actual.grads[i] if i < len(self.actual.grads) else None
            label = self.call.labels[i]
            if ref is None:
                continue
            if grad is None:
                shapes_differ = any(f.kind == "shape" for f in self.findings)
                if not shapes_differ:
                    self.add("backward", label, "missing", self.call.tensors[i], None)
                continue
            self._compare("backward", label, grad, ref, i)

    def repeat(self, again: Result) -> None:
        """The second run on the device against the first."""
        if again is self.actual or again.error is not None:
            return
        firsts = [
            ("forward", label, t)
            for label, t in zip(self.actual.labels, self.actual.outputs, strict=True)
        ]
        firsts += [
            ("backward", label, g)
            for label, g in zip(self.call.labels, self.actual.grads, strict=True)
            if g is not None
        ]
        seconds = again.outputs + [g for g in again.grads if g is not None]
        for (phase, label, first), second in zip(firsts, seconds, strict=False):
            if same_bits(first, second):
                continue
            found = measure(second, first)
            limits = thresholds_for(first.dtype, self.rules.overrides)
            if self.rules.bitwise or found.kind(limits) is not None:
                self.add(phase, label, "nondeterministic", first, found)

    def refusal(self, error: str) -> Finding:
        """The device raised."""
        self.add(self.actual.phase, "output", "error", self.call.tensors[0], None, error)
        return self.findings[-1]

    def add(
        self,
        phase: str,
        tensor: str,
        kind: str,
        like: Tensor,
        found: Measure | None,
        text: str | None = None,
    ) -> None:
        """Record a finding, once for each tensor and phase."""
        if any((f.phase, f.tensor) == (phase, tensor) for f in self.findings):
            return
        nan = float("nan")
        explanation = text or explain(kind, self.rules.device)
        self.findings.append(
            Finding(
                name=self.call.name,
                op=self.call.op,
                phase=phase,
                tensor=tensor,
                kind=kind,
                cosine=found.cosine if found else nan,
                relative_error=found.relative if found else nan,
                element_error=found.element if found else nan,
                shape=tuple(like.shape),
                dtype=str(like.dtype).removeprefix("torch."),
                explanation=f"{kind}: {explanation}",
                call=self.call,
            )
        )

    def _compare(self, phase: str, label: str, x: Tensor, ref: Tensor, index: int) -> bool:
        found = measure(x, ref)
        coarse = coarsest([x.dtype, *(out.dtype for out in self.actual.outputs)])
        limits = thresholds_for(coarse, self.rules.overrides)
        kind = found.kind(limits)
        if kind in ("wrong", "element", "precision"):
            if self._within(found, phase, index, torch.finfo(coarse).eps / 2, ROUNDING_FACTOR):
                self.rules._note(
                    self.call,
                    f"{phase} {label} is {found.relative:.1e} off, as much as rounding its input "
                    "explains (ill-conditioned)",
                )
                kind, found = None, replace(found, relative=min(found.relative, limits.relative))
            elif self._is_tf32(found, phase, index):
                kind = None if self.rules.allow_tf32 else "tf32"
        self.seen.append((phase, label, found))
        if kind is not None:
            self.add(phase, label, kind, x, found)
        return kind is None

    def _is_tf32(self, found: Measure, phase: str, index: int) -> bool:
        if self.rules.device.reduced_precision() != "TF32" or self.call.real != torch.float32:
            return False
        return self._within(found, phase, index, TF32_STEP, TF32_FACTOR)

    def _within(self, found: Measure, phase: str, index: int, step: float, factor: float) -> bool:
        """Whether moving the inputs by `step` moves the reference about as far."""
        if step not in self._shaken:
            self._shaken[step] = [
                run_reference(self.call, self.rules.seed, self.tape, jitter=step, draw=draw)
                for draw in range(1, DRAWS + 1)
            ]
        moved = []
        for shaken in self._shaken[step]:
            mine = shaken.outputs if phase == "forward" else shaken.grads
            base = self.reference.outputs if phase == "forward" else self.reference.grads
            a, b = mine[index], base[index]
            if a is not None and b is not None:
                moved.append(measure(a, b))
        distance = max((m.distance for m in moved), default=0.0)
        peak = max((m.peak for m in moved), default=0.0)
        return found.distance <= factor * distance and found.peak <= factor * peak


def explain(kind: str, device: Device) -> str:
    """What a kind of finding means and what to do about it."""
    advice = {
        "wrong": "the kernel is wrong for these inputs; reproduce it with --repro, then replace "
        "or avoid the operator on this device",
        "element": "most values are right and a few are far off, as after an index error",
        "precision": "the result is less precise than rounding explains, as after accumulating "
        "in a narrower dtype",
        "tf32": "float32 products are rounded to TF32 on this device because of a global "
        "setting. The kernel is not wrong. Set torch.backends.cuda.matmul.allow_tf32 and "
        "torch.backends.cudnn.allow_tf32 to False for float32, or pass allow_tf32 to accept it",
        "nonfinite": "NaN or Inf in one of the two only",
        "shape": "the device returned another shape or kind",
        "missing": "the device gave no gradient where the reference has one",
        "nondeterministic": f"two equal calls on {device.name} gave different results",
        "integer": "integer or boolean values differ",
        "error": "the device raised an error",
    }
    return advice[kind]
