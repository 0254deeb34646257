"""Walk a model in float64 on the CPU and hand over every operator call it makes.

Theory of operation. The model's copy runs once, forward only, under a ``TorchFunctionMode``. Each
call of a torch function arrives there before it runs, with the layer it belongs to known from
module hooks; ``autograd.Function`` subclasses are caught where their ``apply`` reaches torch. The
call's inputs are copied, the call is made on the real tensors without recording a graph, the copy
goes to the visitor, and is dropped. So gradients of the whole model are never held, in-place
operators and shared modules behave as always, and memory stays that of the widest call.

Tensors that would require grad in training are marked so, without a graph: the visitor learns
from the marks which gradients to check.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import function as autograd_function
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.weak import WeakTensorKeyDictionary

from mccl.numerics.call import Call, lifted, make_call, reference_arguments
from mccl.numerics.tensors import default_dtype, inexact, leaves, map_leaves, narrow, wide

Visitor = Callable[[Call], Sequence[torch.dtype] | None]
"""Takes a call; returns the device's output dtypes, or None where it did not run it."""

_PROPERTIES = {f"torch.Tensor.{name}.__get__" for name in ("T", "mT", "H", "mH", "real", "imag")}

_QUIET = {
    "torch.Tensor." + name
    for name in (
        "detach", "detach_", "requires_grad_", "register_hook", "retain_grad", "backward", "item",
        "tolist", "numpy", "size", "dim", "ndimension", "numel", "nelement", "stride", "data_ptr",
        "storage_offset", "is_contiguous", "is_floating_point", "is_complex", "element_size",
        "__len__", "__bool__", "__repr__", "__format__", "__hash__", "__iter__", "__contains__",
        "__float__", "__int__", "__index__", "__array__", "__deepcopy__", "__reduce_ex__",
        "untyped_storage", "get_device", "is_set_to", "is_same_size", "type", "cuda", "cpu",
        "to_dense", "is_conj", "is_neg", "set_", "share_memory_", "__dlpack__",
    )
}  # fmt: skip
"""Calls that compute nothing, or move data only: made, not checked."""


def _writes(func: Any) -> bool:
    """Whether `func` is one of the operators that exist to change their input."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name == "__setitem__" or name.startswith("__i")
    return name.endswith("_")


class Capture(TorchFunctionMode):
    """The mode described above, for one model.

    dtypes gives each parameter's and buffer's dtype on the device; `real` that of everything
    made on the way.
    """

    def __init__(
        self,
        model: nn.Module,
        visitor: Visitor,
        *,
        real: torch.dtype,
        dtypes: Mapping[str, torch.dtype],
    ) -> None:
        super().__init__()
        self._visitor = visitor
        self._real = real
        self._busy = False
        self._index = 0
        self._views: set[Any] = set()
        self._stack: list[str] = [""]
        self._names = {id(module): name for name, module in model.named_modules()}
        self._dtypes: Any = WeakTensorKeyDictionary()
        self._labels: Any = WeakTensorKeyDictionary()
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            self._dtypes[tensor] = dtypes.get(name, narrow(tensor.dtype, real))
            self._labels[tensor] = name.rpartition(".")[2]

    def remember(self, tensor: Tensor, dtype: torch.dtype) -> None:
        """`tensor` has `dtype` on the device."""
        self._dtypes[tensor] = dtype

    # ---- which layer ----

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """The mode, the module hooks and the hold on ``autograd.Function``, for a block.

        The hooks and the hold are global: other threads must not run models meanwhile.
        """
        hooks = nn.modules.module
        handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        base: Any = autograd_function._SingleLevelFunction
        base.apply = classmethod(self._custom)
        try:
            with default_dtype(torch.float64), self, torch.enable_grad():
                yield
        finally:
            del base.apply
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        self._stack.append(self._names.get(id(module), self._stack[-1]))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._stack.pop()

    # ---- what it calls ----

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if self._busy:
            return func(*args, **keywords)
        return self._handle(func, resolve_name(func), args, keywords)

    def _custom(self, cls: Any, *args: Any, **kwargs: Any) -> Any:
        """Stands for ``apply`` of every custom autograd function."""
        base: Any = autograd_function._SingleLevelFunction
        parent: Any = super(base, cls)
        actual = parent.apply
        if self._busy:
            return actual(*args, **kwargs)
        if cls is torch.utils.checkpoint.CheckpointFunction:
            # Recomputation changes no value; what it wraps is checked call by call.
            run, _preserve_rng, *rest = args
            return run(*rest)
        op = f"{cls.__module__}.{cls.__qualname__}.apply"
        return self._handle(actual, op, args, kwargs)

    def _handle(self, func: Any, op: str | None, args: Sequence[Any], kwargs: Any) -> Any:
        op = op or str(getattr(func, "__name__", repr(func)))
        args, kwargs = map_leaves(self._widened, list(args)), map_leaves(self._widened, kwargs)
        inputs = leaves((args, kwargs))
        silent = op in _QUIET or (op.endswith(("__get__", "__set__")) and op not in _PROPERTIES)
        silent = silent or not any(inexact(t) for t in inputs)
        silent = silent or any(t.layout is not torch.strided or t.is_nested for t in inputs)
        self._busy = True
        try:
            if silent:
                return self._evolve(func, args, kwargs)
            return self._checked(func, op, args, kwargs, inputs)
        finally:
            self._busy = False

    @staticmethod
    def _evolve(func: Any, args: Sequence[Any], kwargs: Any) -> Any:
        """Make the call for real, in float64 on the CPU."""
        wide_args, wide_kwargs = reference_arguments(func, args, kwargs)
        return lifted(func)(*wide_args, **wide_kwargs)

    def _checked(self, func: Any, op: str, args: Any, kwargs: Any, inputs: list[Tensor]) -> Any:
        call = make_call(
            func,
            args,
            kwargs,
            op=op,
            name=self._stack[-1],
            index=self._index,
            dtype_of=lambda t: self._dtypes.get(t, narrow(t.dtype, self._real)),
            label_of=self._labels.get,
            real=self._real,
        )
        self._index += 1
        marked = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
        versions = [t._version for t in inputs]
        state = torch.get_rng_state()
        with torch.no_grad():
            returned = self._evolve(func, args, kwargs)
        call.random = not torch.equal(state, torch.get_rng_state())
        changed = [t for t, v in zip(inputs, versions, strict=True) if t._version != v]
        call.clones = any(t.requires_grad for t in changed)
        outputs = leaves(returned)
        if not outputs and not changed:
            return returned
        dtypes: Sequence[torch.dtype] | None = None
        if changed or not self._known_view(call, outputs, inputs):
            dtypes = self._visitor(call)
        for i, out in enumerate(outputs):
            if dtypes is not None and i < len(dtypes):
                self._dtypes[out] = dtypes[i]
            elif out not in self._dtypes:
                self._dtypes[out] = self._inherited(out, inputs)
        if marked:
            # Running statistics are written too, but without gradient: only the operators whose
            # purpose is to write pass it on.
            written = changed if _writes(func) else []
            for out in [*outputs, *written]:
                if inexact(out) and not out.requires_grad:
                    out.requires_grad_()
        return returned

    def _known_view(self, call: Call, outputs: list[Tensor], inputs: list[Tensor]) -> bool:
        """Whether the call only views its input, and one of the same layout was checked."""
        if call.random or not outputs:
            return False
        storages = {t.untyped_storage()._cdata for t in inputs}
        if any(t.untyped_storage()._cdata not in storages for t in outputs):
            return False
        layout = [
            (tuple(t.shape), t.stride(), t.dtype, w)
            for t, w in zip(call.tensors, call.wants, strict=True)
        ]
        key = (call.op, repr(layout), repr(call.args), repr(call.kwargs))
        if key in self._views:
            return True
        self._views.add(key)
        return False

    def _inherited(self, out: Tensor, inputs: list[Tensor]) -> torch.dtype:
        for tensor in inputs:
            if tensor.dtype == out.dtype and tensor in self._dtypes:
                found: torch.dtype = self._dtypes[tensor]
                return found
        return narrow(out.dtype, self._real)

    # ---- into float64 ----

    def _widened(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not inexact(leaf) or leaf.dtype == wide(leaf.dtype):
            return leaf
        if leaf.device.type == "meta":
            return leaf
        self._busy = True
        try:
            with torch.no_grad():
                out = leaf.detach().to(device="cpu", dtype=wide(leaf.dtype))
            out.requires_grad_(leaf.requires_grad)
        finally:
            self._busy = False
        self._dtypes[out] = leaf.dtype
        return out
