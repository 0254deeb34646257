"""Write a finding as a script that needs torch alone.

The script holds the call itself, so it can be sent to whoever owns the kernel. Random inputs of
the same sizes and strides are tried first; only if the fault needs the very values that were
seen are they stored beside the script.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mccl.errors import UsageError
from mccl.numerics.call import Call, Slot
from mccl.numerics.device import Device, as_device
from mccl.numerics.findings import Finding
from mccl.numerics.judge import Judge
from mccl.numerics.tensors import inexact

HEAD = '''\
"""Stand-alone reproduction: {op}, {phase}, {tensor}.

Layer: {layer}. Found on {device} with torch {torch}: cosine {cosine:.6f}, relative error
{relative:.2e} against float64 on the CPU ({kind}).
Run: python {file} [DEVICE]. Exit code 1: the device differs; 0: it does not.
"""
import sys

import torch
{imports}

def inputs():
    {inputs}


def leaves(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in leaves(v)] if isinstance(value, (list, tuple)) else []


def wide(dtype):
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def run(device, exact):
    """Outputs and gradients on `device`; in float64 if `exact`."""
    torch.manual_seed(0)
    x = []
    for tensor, wants in zip(inputs(), {wants}):
        size, stride = tensor.size(), tensor.stride()
        reach = sum((n - 1) * s for n, s in zip(size, stride)) + 1 if tensor.numel() else 0
        dtype = wide(tensor.dtype) if exact else tensor.dtype
        flat = tensor.as_strided((reach,), (1,)).to(device=device, dtype=dtype, copy=True)
        copy = flat.as_strided(size, stride)
        x.append(copy.requires_grad_(wants))
    leaf = x
    x = [t.clone() if {clones} and t.requires_grad else t for t in x]
    torch.manual_seed(0)
    out = {call}
    values = leaves(out) or [t for t, c in zip(x, leaf) if t is not c]
    grads = []
    active = [t for t in values if t.requires_grad]
    if active:
        generator = torch.Generator().manual_seed(1)
        back = [torch.randn(t.shape, generator=generator, dtype=torch.complex64 if t.is_complex()
                            else torch.float32).to(device=device, dtype=t.dtype) for t in active]
        wanted = [t for t in leaf if t.requires_grad]
        grads = torch.autograd.grad(active, wanted, back, allow_unused=True)
    written = [t for t in x if not t.requires_grad and t.is_floating_point()]
    return [("output", t) for t in values] + [("gradient", t) for t in grads] + [
        ("input afterwards", t) for t in written]


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else {device!r}
    print("torch", torch.__version__, "on", device)
    bad = False
    for (what, x), (_, ref) in zip(run(device, False), run("cpu", True)):
        if ref is None or x is None:
            differs, text = (ref is None) != (x is None), "missing"
        elif x.shape != ref.shape:
            differs, text = True, f"shape {{tuple(x.shape)}} instead of {{tuple(ref.shape)}}"
        else:
            a, b = (t.detach().cpu().to(wide(t.dtype)).flatten() for t in (x, ref))
            if not a.dtype.is_floating_point and not a.dtype.is_complex:
                a, b = a.double(), b.double()
            error = float((a - b).abs().square().sum().sqrt() / b.abs().square().sum().sqrt())
            peak = float((a - b).abs().max() / b.abs().max()) if a.numel() else 0.0
            differs = not (error <= {limit!r} and peak <= {element!r})
            text = f"relative error {{error:.2e}}, largest {{peak:.2e}}"
        bad |= differs
        print("DIFFERS" if differs else "ok     ", what, text)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
'''


def write_script(
    finding: Finding, path: str | Path, *, device: str | torch.device | Device = "cpu"
) -> Path:
    """Write a script that reproduces `finding` to `path`, and return its path.

    device: where the fault is; it is tried there whether random inputs show it too. If they do
    not, the inputs seen are stored next to the script as ``<name>.pt``.

    Raises:
        UsageError: the finding has no call (end to end, or beyond the first 16 findings).
    """
    call = finding.call
    if call is None:
        raise UsageError(
            f"the finding on {finding.name or '(model)'!r} keeps no inputs: only the first "
            "findings do. Check that layer alone with layers=[...]"
        )
    target = as_device(device)
    where = Path(path)
    where.parent.mkdir(parents=True, exist_ok=True)
    fresh = replace(call, tensors=[_random_like(t, i) for i, t in enumerate(call.tensors)])
    shown, _, _ = Judge(target, deterministic=False).judge(fresh)
    if any((f.phase, f.kind) == (finding.phase, finding.kind) for f in shown):
        lines = [_maker(t, i) for i, t in enumerate(call.tensors)]
        inputs = "return [\n        " + ",\n        ".join(lines) + ",\n    ]"
    else:
        stored = where.with_suffix(".pt")
        torch.save(call.tensors, stored)
        inputs = (
            f"return torch.load(__file__.removesuffix({where.suffix!r}) + '.pt', weights_only=True)"
        )
    where.write_text(_script(finding, call, where.name, target, inputs))
    return where


def _random_like(tensor: Tensor, seed: int) -> Tensor:
    """What the script's own line makes: normal values, or the integers as they were."""
    if not inexact(tensor) or tensor.numel() == 0:
        return tensor
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(reach, generator=generator, dtype=_drawn(tensor)).to(tensor.dtype)
    return values.as_strided(tensor.shape, tensor.stride())


def _drawn(tensor: Tensor) -> torch.dtype:
    return torch.complex64 if tensor.is_complex() else torch.float32


def _maker(tensor: Tensor, seed: int) -> str:
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    if tensor.numel() == 0:
        return f"torch.empty({size}, dtype={tensor.dtype})"
    if not inexact(tensor):
        return f"torch.tensor({tensor.tolist()!r}, dtype={tensor.dtype}).reshape({size})"
    reach = sum((n - 1) * s for n, s in zip(size, stride, strict=True)) + 1
    values = (
        f"torch.randn({reach}, generator=torch.Generator().manual_seed({seed}), "
        f"dtype={_drawn(tensor)}).to({tensor.dtype})"
    )
    return f"{values}.as_strided({size}, {stride})"


def _source(leaf: Any) -> str:
    if isinstance(leaf, Slot):
        return f"x[{leaf.index}]"
    if isinstance(leaf, torch.device):
        return "device"
    if leaf is Ellipsis:
        return "..."
    return repr(leaf)


def _expression(tree: Any) -> str:
    if isinstance(tree, tuple):
        inner = ", ".join(_expression(v) for v in tree)
        return f"({inner},)" if len(tree) == 1 else f"({inner})"
    if isinstance(tree, list):
        return "[" + ", ".join(_expression(v) for v in tree) + "]"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{k!r}: {_expression(v)}" for k, v in tree.items()) + "}"
    return _source(tree)


def _script(finding: Finding, call: Call, file: str, device: Device, inputs: str) -> str:
    arguments = [_expression(arg) for arg in call.args]
    arguments += [f"{key}={_expression(value)}" for key, value in call.kwargs.items()]
    imports, op = "", call.op
    if op.startswith("aten."):
        op = f"torch.ops.{op}"
    elif not op.startswith("torch."):
        module = op.removesuffix(".apply").rpartition(".")[0]
        imports = f"import {module}  # the custom function lives there\n"
    known = (Slot, int, float, bool, str, type(None), torch.dtype, torch.device, type(...), slice)
    strange = [v for v in pytree.tree_leaves((call.args, call.kwargs)) if not isinstance(v, known)]
    if strange:
        imports += f"# arguments to fill in by hand: {[type(v).__name__ for v in strange]}\n"
    precision = finding.kind in ("precision", "tf32")
    return HEAD.format(
        op=call.op,
        phase=finding.phase,
        tensor=finding.tensor,
        layer=finding.name or "(model)",
        device=device.name,
        torch=torch.__version__,
        cosine=finding.cosine,
        relative=finding.relative_error,
        kind=finding.kind,
        file=file,
        imports=imports,
        inputs=inputs,
        wants=call.wants,
        clones=call.clones,
        call=f"{op}({', '.join(arguments)})",
        limit=1e-4 if precision else 1e-3,
        element=1e-3,
    )
