"""The whole model at once, forward and backward, on the device and in float64 on the CPU.

Layer by layer finds who is wrong; this finds whether anything is, also in what no layer shows
(an interaction, a buffer that is kept too long, an operator that torch does not announce).
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mccl.errors import UsageError
from mccl.numerics.call import CPU, FAILURES, lifted, reference_arguments
from mccl.numerics.compare import Measure, Thresholds, coarsest, measure, thresholds_for
from mccl.numerics.device import Device
from mccl.numerics.findings import EndToEnd
from mccl.numerics.judge import ROUNDING_FACTOR, TF32_FACTOR, TF32_STEP
from mccl.numerics.tape import Tape, TapeMismatchError
from mccl.numerics.tensors import default_dtype, inexact, leaves, map_leaves, narrow, wide


class Widen(TorchFunctionMode):
    """Casts inside the model go to float64, moves go to the CPU.

    step > 0 also multiplies what each call returns by 1 ± step, so that values and gradients are
    off as they would be if every operator rounded. (Moving the inputs alone would not do: the
    gradient of a bias before a batch norm is zero whatever the inputs, and rounding noise in fact.)
    """

    def __init__(self, step: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        self._step, self._rng = step, np.random.default_rng(seed)

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        def widened(leaf: Any) -> Any:
            if isinstance(leaf, Tensor) and inexact(leaf) and leaf.dtype != wide(leaf.dtype):
                return leaf.to(wide(leaf.dtype))
            return leaf

        values, keywords = reference_arguments(func, args, dict(kwargs or {}))
        values, keywords = map_leaves(widened, values), map_leaves(widened, keywords)
        out = lifted(func)(*values, **keywords)
        if not self._step:
            return out
        held = {t.untyped_storage()._cdata for t in leaves((values, keywords))}

        def rounded(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or not inexact(leaf) or leaf.is_leaf:
                return leaf
            if leaf.untyped_storage()._cdata in held:
                return leaf  # a view, or written in place: its values are another call's
            return leaf * signs(leaf, self._step, self._rng)

        return map_leaves(rounded, out)


def widened_model(model: nn.Module) -> nn.Module:
    """A float64 copy of `model` on the CPU."""
    made: Any = copy.deepcopy(model)
    made._apply(lambda t: t.detach().to(device="cpu", dtype=wide(t.dtype)))
    copied: nn.Module = made
    return copied


def inputs_for(tree: Any, *, real: torch.dtype | None, place: torch.device, grad: bool) -> Any:
    """Example inputs copied to `place`; `real` None means float64. Floating ones may need grad."""

    def put(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        dtype = wide(leaf.dtype) if real is None else leaf.dtype
        copied = leaf.detach().to(device=place, dtype=dtype, copy=True)
        return copied.requires_grad_(leaf.requires_grad or (grad and inexact(leaf)))

    return map_leaves(put, tree)


def signs(like: Tensor, step: float, rng: np.random.Generator) -> Tensor:
    """1 ± step in float64, shaped as `like`. Not torch's generator: that one is on a tape."""
    drawn = np.asarray(rng.integers(0, 2, tuple(like.shape)), dtype=np.float64)
    return 1.0 + step * (2.0 * torch.from_numpy(drawn) - 1.0)


@contextlib.contextmanager
def _all(*contexts: AbstractContextManager[object]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@dataclass
class Pass:
    """Outputs, gradients by name and changed buffers of one forward and backward pass."""

    outputs: list[Tensor] = field(default_factory=list)
    grads: dict[str, Tensor] = field(default_factory=dict)


def run_pass(
    model: nn.Module,
    inputs: Any,
    kwargs: Any,
    *,
    modes: Callable[[], AbstractContextManager[object]],
    seed: int,
    real: torch.dtype,
    step: float = 0.0,
) -> Pass:
    """Forward, then backward from seeded normal cotangents rounded to `real`.

    modes is entered around the model's own work alone. step > 0 multiplies cotangents by 1 ± step.
    """
    with modes():
        outputs = [t for t in leaves(model(*inputs, **kwargs)) if inexact(t)]
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    active, cotangents = [], []
    for out in outputs:
        grad = torch.randn(out.shape, generator=generator, dtype=wide(out.dtype))
        grad = grad.to(narrow(grad.dtype, real)).to(grad.dtype)
        if step:
            grad = grad * signs(grad, step, rng)
        if out.requires_grad:
            active.append(out)
            cotangents.append(grad.to(device=out.device, dtype=out.dtype))
    if active:
        with modes():
            torch.autograd.backward(active, cotangents)
    done = Pass([out.detach().to("cpu", copy=True) for out in outputs])
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            done.grads[name] = parameter.grad.to("cpu")
            parameter.grad = None
    for i, tensor in enumerate(leaves((inputs, kwargs))):
        if tensor.grad is not None:
            done.grads[f"input[{i}]"] = tensor.grad.to("cpu")
    done.outputs += [b.detach().to("cpu", copy=True) for b in model.buffers() if inexact(b)]
    return done


@dataclass
class Whole:
    """One model and its example inputs, to be run on both sides.

    coarse: the least precise dtype that any of its calls returned on the device.
    """

    model: nn.Module
    inputs: Any
    kwargs: Any
    device: Device
    real: torch.dtype
    seed: int
    input_grad: bool
    overrides: Mapping[torch.dtype, Thresholds] | None = None
    coarse: torch.dtype = torch.float64

    def reference(self, tape_mode: Any, step: float = 0.0) -> Pass:
        """In float64; step > 0 moves parameters, inputs and cotangents by 1 ± step."""
        model = widened_model(self.model)
        inputs, kwargs = (
            inputs_for(tree, real=None, place=CPU, grad=self.input_grad)
            for tree in (self.inputs, self.kwargs)
        )
        if step:
            rng = np.random.default_rng(self.seed + 1)
            with torch.no_grad():
                for tensor in [*model.parameters(), *leaves((inputs, kwargs))]:
                    if inexact(tensor):
                        tensor.mul_(signs(tensor, step, rng))
        widen = Widen(step, self.seed)
        try:
            return run_pass(
                model,
                inputs,
                kwargs,
                modes=lambda: _all(default_dtype(torch.float64), tape_mode, widen),
                seed=self.seed,
                real=self.real,
                step=step,
            )
        except FAILURES as error:
            raise UsageError(
                f"the model's own backward pass fails in float64 on the CPU: {error}. Mend the "
                "model, or pass end_to_end=False"
            ) from error

    def on_device(self, tape: Tape) -> Pass:
        """On the device, with the reference's random numbers."""
        place = self.device.torch_device
        model = copy.deepcopy(self.model).to(place)
        inputs, kwargs = (
            inputs_for(tree, real=self.real, place=place, grad=self.input_grad)
            for tree in (self.inputs, self.kwargs)
        )
        replay = tape.replay()
        done = run_pass(
            model,
            inputs,
            kwargs,
            modes=lambda: _all(replay, self.device.active()),
            seed=self.seed,
            real=self.real,
        )
        self.device.synchronize()
        return done

    def compare(self) -> EndToEnd:
        """Both runs and the verdict."""
        tape = Tape()
        reference = self.reference(tape.record())
        try:
            actual = self.on_device(tape)
        except TapeMismatchError as error:
            return EndToEnd(True, False, explanation=f"random numbers cannot be replayed: {error}")
        except FAILURES as error:
            return EndToEnd(False, False, explanation=f"{type(error).__name__}: {error}")
        outputs = {
            f"output[{i}]": (x, ref)
            for i, (x, ref) in enumerate(zip(actual.outputs, reference.outputs, strict=False))
        }
        grads = {
            name: (actual.grads[name], ref)
            for name, ref in reference.grads.items()
            if name in actual.grads
        }
        lost = [name for name in reference.grads if name not in actual.grads]
        suspects, worst = [], {}
        for part, pairs in (("outputs", outputs), ("grads", grads)):
            worst[part] = ("", Measure(1.0, 0.0, 0.0, 0.0, 0.0))
            for name, (x, ref) in pairs.items():
                found = measure(x, ref)
                limits = thresholds_for(coarsest([x.dtype, self.coarse]), self.overrides)
                if found.kind(limits) in _SERIOUS:
                    suspects.append((part, name, found))
                elif found.relative >= worst[part][1].relative:
                    worst[part] = (name, found)
        guilty, explanation = self._unexplained(suspects, tape, reference)
        for part, name, found in guilty:
            if found.relative >= worst[part][1].relative or found.nonfinite:
                worst[part] = (name, found)
        if lost:
            explanation = f"no gradient on the device for {', '.join(lost[:5])}"
        (_, out), (name, grad) = worst["outputs"], worst["grads"]
        return EndToEnd(
            ok=not guilty and not lost,
            comparable=True,
            output_cosine=out.cosine,
            output_error=out.relative,
            gradient=name,
            gradient_cosine=grad.cosine,
            gradient_error=grad.relative,
            explanation=explanation,
        )

    def _unexplained(
        self, suspects: list[tuple[str, str, Measure]], tape: Tape, reference: Pass
    ) -> tuple[list[tuple[str, str, Measure]], str]:
        """The suspects that rounding does not explain, and a word on those that it does."""
        if not suspects:
            return [], ""
        step, factor = torch.finfo(coarsest([self.real, self.coarse])).eps / 2, ROUNDING_FACTOR
        if self.device.reduced_precision() == "TF32":
            step, factor = TF32_STEP, TF32_FACTOR
        shaken = self.reference(tape.replay(), step)
        typical = _typical(reference.grads)
        guilty = []
        for part, name, found in suspects:
            if part == "outputs":
                i = int(name[len("output[") : -1])
                moved = measure(shaken.outputs[i], reference.outputs[i])
            else:
                moved = measure(shaken.grads[name], reference.grads[name])
                if not found.nonfinite and _nothing(found, reference.grads[name], typical):
                    continue
            if found.shape or found.nonfinite or found.distance > factor * moved.distance:
                guilty.append((part, name, found))
        excused = len(suspects) - len(guilty)
        text = f"{excused} tensors differ as much as rounding explains" if excused else ""
        return guilty, text


def _rms(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor)) / math.sqrt(max(1, tensor.numel()))


def _typical(grads: Mapping[str, Tensor]) -> float:
    """The median size of a gradient's elements."""
    return float(np.median([_rms(grad) for grad in grads.values()])) if grads else 0.0


def _nothing(found: Measure, reference: Tensor, typical: float) -> bool:
    """Whether a gradient that is zero in theory is nothing but rounding noise on both sides.

    The bias before a batch norm is one: its gradient is a sum that cancels exactly.
    """
    error = found.distance / math.sqrt(max(1, reference.numel()))
    return max(error, _rms(reference)) <= NEGLIGIBLE * typical


NEGLIGIBLE = 1e-5
"""Of a typical gradient, below which one counts as zero."""

_SERIOUS = {"wrong", "shape", "nonfinite"}
