"""From words on a command line to a model and its example inputs."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mccl.errors import UsageError

_INPUT = re.compile(r"(?P<shape>\d+(x\d+)*)(:(?P<dtype>[a-z0-9]+))?(<(?P<below>\d+))?")


def example_inputs(words: Sequence[str], seed: int) -> tuple[Tensor, ...]:
    """Tensors for ``SHAPE[:DTYPE][<BELOW]``: normal values, or integers from 0 to below BELOW (2).

    Raises:
        UsageError: a word is something else.
    """
    generator = torch.Generator().manual_seed(seed)
    return tuple(_example(word, generator) for word in words)


def _example(word: str, generator: torch.Generator) -> Tensor:
    found = _INPUT.fullmatch(word)
    dtype = getattr(torch, found["dtype"] or "float32", None) if found else None
    if found is None or not isinstance(dtype, torch.dtype):
        raise UsageError(
            f"--input {word!r} is not understood; expected a shape and a dtype, such as 8x3x32x32, "
            "2x76800:float16 or 8x65:int64<1000"
        )
    shape = [int(size) for size in found["shape"].split("x")]
    if dtype.is_floating_point or dtype.is_complex:
        drawn = torch.complex64 if dtype.is_complex else torch.float32
        return torch.randn(shape, generator=generator, dtype=drawn).to(dtype)
    return torch.randint(0, int(found["below"] or 2), shape, generator=generator).to(dtype)


def load_model(text: str, seed: int) -> tuple[nn.Module, tuple[Any, ...] | None]:
    """The model that ``module:factory`` or ``file.py:factory`` makes, and its inputs if it has any.

    Raises:
        UsageError: there is no such module or factory, or it makes something else.
    """
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise UsageError(f"{text!r} is not understood; expected MODULE:FACTORY, as in train:model")
    module = _module(where)
    factory = module
    for part in name.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        raise UsageError(f"{where} has no function or class {name!r}")
    torch.manual_seed(seed)
    made = factory() if not isinstance(factory, nn.Module) else factory
    inputs = None
    if isinstance(made, tuple) and len(made) == 2:
        made, inputs = made
        inputs = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    if not isinstance(made, nn.Module):
        raise UsageError(
            f"{text} made a {type(made).__name__}; expected a torch.nn.Module, or a module and a "
            "tuple of inputs"
        )
    return made, inputs


def _module(where: str) -> Any:
    if where.endswith(".py"):
        path = Path(where)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise UsageError(f"there is no file {where}")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)  # custom functions are named by their module
        spec.loader.exec_module(module)
        return module
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` has it: a script's own folder counts
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"module {where!r} cannot be imported ({error}); run from the folder that holds it, or "
            "give the path of the file"
        ) from error
