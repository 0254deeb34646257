"""One operator call, kept so that it can be run again: on the device, in float64, or from a script.

Inputs are stored once, rounded to the dtype that the device uses for them. Both sides start from
these rounded values, so the rounding of the input is not counted against the kernel.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import resolve_name
from torch.utils import _pytree as pytree

from mccl.numerics.device import Device
from mccl.numerics.tape import Tape
from mccl.numerics.tensors import default_dtype, inexact, leaves, mirror, narrow, same_bits, wide

CPU = torch.device("cpu")

FAILURES = (RuntimeError, TypeError, ValueError, IndexError)
"""What torch raises when a device lacks or refuses an operator."""

_TENSOR: Any = torch.Tensor

_TO_WIDE: dict[Any, Callable[..., Any]] = {
    torch.Tensor.float: torch.Tensor.double,
    torch.Tensor.half: torch.Tensor.double,
    torch.Tensor.bfloat16: torch.Tensor.double,
    _TENSOR.cfloat: _TENSOR.cdouble,
    torch.Tensor.cuda: lambda tensor, *args, **kwargs: tensor,
    torch.Tensor.cpu: lambda tensor, *args, **kwargs: tensor,
}


@dataclass(frozen=True)
class Slot:
    """Stands for tensor number `index` in a call's arguments."""

    index: int


def lifted(func: Any) -> Callable[..., Any]:
    """`func` for the reference: casts widen, and moves between devices do nothing."""
    found: Callable[..., Any] = _TO_WIDE.get(func, func)
    return found


def on_reference(leaf: Any) -> Any:
    """A non-tensor argument for the reference: wide dtypes, on the CPU."""
    if isinstance(leaf, torch.dtype):
        return wide(leaf)
    return CPU if isinstance(leaf, torch.device) else leaf


def reference_arguments(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """All arguments of a call for the reference; tensors stay as they are."""
    values = [pytree.tree_map(on_reference, arg) for arg in args]
    keywords = {key: pytree.tree_map(on_reference, value) for key, value in kwargs.items()}
    if keywords.get("device") is not None:
        keywords["device"] = CPU
    if func is torch.Tensor.to:
        values = [CPU if isinstance(value, str) else value for value in values]
    return values, keywords


@dataclass
class Call:
    """`func(*args, **kwargs)` as the layer `name` made it.

    tensors: rounded inputs on the CPU, each distinct tensor once. wants: which of them need a
    gradient. labels: what to call them in a report. real: the real dtype the device computes in.
    """

    func: Callable[..., Any]
    op: str
    name: str
    index: int
    args: Any
    kwargs: Any
    tensors: list[Tensor]
    wants: list[bool]
    labels: list[str]
    real: torch.dtype
    random: bool = False
    clones: bool = False

    def cotangents(self, outputs: Sequence[Tensor], seed: int) -> list[Tensor]:
        """Gradients to feed to `outputs`: standard normal, float64, rounded to the device's."""
        generator = torch.Generator().manual_seed(seed * 1_000_003 + self.index)
        made = []
        for out in outputs:
            grad = torch.randn(out.shape, generator=generator, dtype=wide(out.dtype))
            made.append(grad.to(narrow(out.dtype, self.real)).to(wide(out.dtype)))
        return made


@dataclass
class Result:
    """What one run of a call gave, on the CPU.

    outputs: tensors returned, then inputs changed in place. grads: one a tensor of the call,
    None where there is none. written: numbers of the inputs changed in place. error: the device's
    refusal, with the phase it came in.
    """

    outputs: list[Tensor] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    grads: list[Tensor | None] = field(default_factory=list)
    cotangents: list[Tensor] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    error: str | None = None
    phase: str = "forward"


def label_inputs(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[int, str]:
    """Names for tensor arguments by ``id``: the signature's where there is one."""
    names: dict[int, str] = {}
    try:
        bound = inspect.signature(func).bind(*args, **kwargs)
        pairs: list[tuple[str, Any]] = list(bound.arguments.items())
    except (TypeError, ValueError):  # built-in functions have no signature
        pairs = [("input" if i == 0 else f"input{i}", arg) for i, arg in enumerate(args)]
        pairs += list(kwargs.items())
    for label, value in pairs:
        found = leaves(value)
        for i, tensor in enumerate(found):
            names.setdefault(id(tensor), label if len(found) == 1 else f"{label}[{i}]")
    return names


def make_call(
    func: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    op: str | None,
    name: str,
    index: int,
    dtype_of: Callable[[Tensor], torch.dtype],
    label_of: Callable[[Tensor], str | None],
    real: torch.dtype,
) -> Call:
    """Keep a call: its inputs are copied, so changing them later does not matter."""
    originals = leaves((args, kwargs))
    position = {id(tensor): i for i, tensor in enumerate(originals)}
    names = label_inputs(func, args, kwargs)

    def stand_in(leaf: Any) -> Any:
        return Slot(position[id(leaf)]) if isinstance(leaf, Tensor) else leaf

    tracked = torch.is_grad_enabled()
    return Call(
        func=func,
        op=op or resolve_name(func) or getattr(func, "__name__", repr(func)),
        name=name,
        index=index,
        args=pytree.tree_map(stand_in, list(args)),
        kwargs=pytree.tree_map(stand_in, kwargs),
        tensors=[mirror(tensor, dtype_of(tensor), CPU) for tensor in originals],
        wants=[tracked and inexact(t) and t.requires_grad for t in originals],
        labels=[label_of(t) or names.get(id(t), f"input{i}") for i, t in enumerate(originals)],
        real=real,
    )


def _device_argument(leaf: Any, call: Call, place: torch.device) -> Any:
    if isinstance(leaf, torch.dtype) and leaf in (torch.float64, torch.complex128):
        return narrow(leaf, call.real)
    if isinstance(leaf, torch.device):
        return place
    return leaf


def run_reference(
    call: Call, seed: int, tape: Tape | None = None, *, jitter: float = 0.0, draw: int = 0
) -> Result:
    """Run `call` in float64 on the CPU.

    jitter > 0 multiplies every input and cotangent by 1 ± jitter (sign at random, seeded by
    `draw`): how far the result then moves is how far rounding alone may move it.
    """
    generator = torch.Generator().manual_seed(draw)

    def shaken(tensor: Tensor) -> Tensor:
        if not jitter or not inexact(tensor):
            return tensor
        signs = torch.randint(0, 2, tensor.shape, generator=generator, dtype=torch.float64)
        return tensor * (1.0 + jitter * (2.0 * signs - 1.0))

    tensors = [mirror(shaken(t), wide(t.dtype), CPU) for t in call.tensors]
    mode: Any = contextlib.nullcontext()
    if tape is not None:
        mode = tape.replay() if jitter else tape.record()
    func = lifted(call.func)

    def invoke(inputs: list[Tensor]) -> Any:
        args, kwargs = _filled(call, inputs, on_reference)
        args, kwargs = reference_arguments(call.func, args, kwargs)
        return func(*args, **kwargs)

    return _run(
        call,
        tensors,
        invoke,
        lambda: mode,
        shake=lambda given: [shaken(c) for c in given],
        seed=seed,
    )


def run_device(call: Call, device: Device, reference: Result, tape: Tape | None = None) -> Result:
    """Run `call` on `device` with the cotangents of `reference`; a refusal becomes `error`."""
    place = device.torch_device
    result = Result()
    try:
        tensors = [mirror(t, t.dtype, place) for t in call.tensors]
        mode: Any = contextlib.nullcontext() if tape is None else tape.replay()

        def invoke(inputs: list[Tensor]) -> Any:
            args, kwargs = _filled(call, inputs, lambda v: _device_argument(v, call, place))
            if kwargs.get("device") is not None:
                kwargs["device"] = place
            return call.func(*args, **kwargs)

        usual = torch.float64 if call.real is torch.float64 else torch.float32

        def modes() -> AbstractContextManager[object]:
            stack = contextlib.ExitStack()
            for context in (default_dtype(usual), mode, device.active()):
                stack.enter_context(context)
            return stack

        _run(
            call,
            tensors,
            invoke,
            modes,
            given=reference.cotangents,
            written=reference.written,
            result=result,
        )
        device.synchronize()
    except FAILURES as error:
        result.error = f"{type(error).__name__}: {error}"
    return result


def _filled(call: Call, inputs: list[Tensor], other: Callable[[Any], Any]) -> tuple[Any, Any]:
    def fill(leaf: Any) -> Any:
        return inputs[leaf.index] if isinstance(leaf, Slot) else other(leaf)

    return pytree.tree_map(fill, call.args), pytree.tree_map(fill, call.kwargs)


def _run(
    call: Call,
    tensors: list[Tensor],
    invoke: Callable[[list[Tensor]], Any],
    modes: Callable[[], AbstractContextManager[object]],
    *,
    shake: Callable[[list[Tensor]], list[Tensor]] = lambda given: given,
    seed: int = 0,
    given: list[Tensor] | None = None,
    written: list[int] | None = None,
    result: Result | None = None,
) -> Result:
    """Forward, then backward where something asks for it, each inside `modes`.

    given: cotangents to use; without, they are made from `seed`. written: inputs known to be
    changed in place; without, they are looked for.
    """
    result = result or Result()
    result.phase = "forward"
    for tensor, wanted in zip(tensors, call.wants, strict=True):
        tensor.requires_grad_(wanted)
    # An operator that writes to its input may not write to a leaf.
    inputs = [t.clone() if call.clones and t.requires_grad else t for t in tensors]
    versions = [t._version for t in inputs]
    # Batch norm's running statistics change without a new version.
    looking = written is None
    before = [t.clone() if looking and not t.requires_grad else None for t in inputs]
    # Checkpointing keeps its hooks on while we are inside; this call is none of its business.
    unhooked = torch.autograd.graph.saved_tensors_hooks(Tensor.detach, _itself)
    with torch.set_grad_enabled(any(call.wants)), unhooked, modes():
        returned = leaves(invoke(inputs))
    known = {id(t) for t in returned}
    result.written = [
        i
        for i, t in enumerate(inputs)
        if id(t) not in known and (t._version != versions[i] or _differs(t, before[i]))
    ]
    in_place = result.written if written is None else written
    outputs = returned + [inputs[i] for i in in_place]
    single = len(returned) == 1
    labels = ["output" if single else f"output[{i}]" for i in range(len(returned))]
    result.labels = labels + [f"{call.labels[i]} (in place)" for i in in_place]
    result.outputs = [_kept(t) for t in outputs]
    result.grads = [None] * len(tensors)
    active = [t for t in outputs if t.requires_grad and inexact(t)]
    wanted_tensors = [t for t in tensors if t.requires_grad]
    if active and wanted_tensors:
        result.phase = "backward"
        if given is None:
            result.cotangents = call.cotangents(active, seed)
            cotangents = shake(result.cotangents)
        elif [t.shape for t in active] != [c.shape for c in given]:
            return result  # the shapes are a finding of their own
        else:
            cotangents = given
        placed = [
            c.to(device=t.device, dtype=t.dtype) for c, t in zip(cotangents, active, strict=True)
        ]
        with modes():
            grads = torch.autograd.grad(active, wanted_tensors, placed, allow_unused=True)
        by_id = {id(t): g for t, g in zip(wanted_tensors, grads, strict=True)}
        result.grads = [_kept(g) if (g := by_id.get(id(t))) is not None else None for t in tensors]
    return result


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _differs(tensor: Tensor, before: Tensor | None) -> bool:
    return before is not None and not same_bits(tensor, before)


def _kept(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
