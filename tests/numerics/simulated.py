"""A device with wrong kernels: the CPU, with some of its operators replaced.

Kernels are replaced below autograd (`kernels`, by aten overload, so a backward kernel can be
wrong alone, as on a real device) or above it (`functions`, where the wrongness is a missing
link between the two). Only what runs inside ``Device.active()`` sees them: the reference does not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mccl.numerics.device import Device

Kernel = Callable[..., Any]
"""Takes the true kernel first, then its arguments."""


class _Kernels(TorchDispatchMode):
    def __init__(self, table: Mapping[Any, Kernel], fired: list[str]) -> None:
        super().__init__()
        self._table, self._fired = table, fired

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kernel = self._table.get(func)
        if kernel is None:
            return func(*args, **(kwargs or {}))
        self._fired.append(str(func))
        return kernel(func, *args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    def __init__(self, table: Mapping[Any, Kernel], fired: list[str]) -> None:
        super().__init__()
        self._table, self._fired = table, fired

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kernel = self._table.get(func)
        if kernel is None:
            return func(*args, **(kwargs or {}))
        self._fired.append(str(func))
        return kernel(func, *args, **(kwargs or {}))


class FaultyDevice(Device):
    """`fired` lists the wrong kernels that ran: a fault that never fires proves nothing."""

    def __init__(
        self,
        kernels: Mapping[Any, Kernel] | None = None,
        functions: Mapping[Any, Kernel] | None = None,
        *,
        tf32: bool = False,
    ) -> None:
        super().__init__("cpu")
        self.name = "simulated"
        self._kernels, self._functions, self._tf32 = kernels or {}, functions or {}, tf32
        self.fired: list[str] = []

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        with _Kernels(self._kernels, self.fired), _Functions(self._functions, self.fired):
            yield

    def reduced_precision(self) -> str | None:
        return "TF32" if self._tf32 else None
