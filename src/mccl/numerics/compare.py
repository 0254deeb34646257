"""How far a device's tensor is from the reference, and from where on that is a fault.

Paper §6.2: cosine below 0.99, or relative error ‖x−ref‖₂/‖ref‖₂ above 1e-3. Two limits are added,
since a norm over millions of elements hides a few wrong ones and a float32 product rounded to
ten bits: the largest error against the largest value, and a lower limit from which float32 is no
longer credible as float32 (`precision`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor


@dataclass(frozen=True)
class Thresholds:
    """Limits for one dtype; a value beyond one of them is a finding.

    cosine: least cosine similarity. relative: largest ‖x−ref‖/‖ref‖. element: largest
    max|x−ref|/max|ref|. precision: relative error from which the dtype's own rounding is no
    longer an explanation.
    """

    cosine: float = 0.99
    relative: float = 1e-3
    element: float = 1e-3
    precision: float = 1e-4


THRESHOLDS: Mapping[torch.dtype, Thresholds] = MappingProxyType(
    {
        torch.float64: Thresholds(0.999999, 1e-9, 1e-8, 1e-10),
        torch.float32: Thresholds(),
        torch.float16: Thresholds(0.99, 1e-2, 2e-2, 1e-2),
        torch.bfloat16: Thresholds(0.99, 4e-2, 8e-2, 4e-2),
    }
)
"""By the real dtype of the device's tensor. The paper's limits stand at float32."""

_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32}


def thresholds_for(
    dtype: torch.dtype, overrides: Mapping[torch.dtype, Thresholds] | None = None
) -> Thresholds:
    """Limits for tensors of `dtype`; complex ones have those of their parts."""
    real = torch.float64 if dtype is torch.complex128 else _REAL.get(dtype, dtype)
    table = {**THRESHOLDS, **(overrides or {})}
    return table.get(real, table[torch.float32])


def coarsest(dtypes: Iterable[torch.dtype]) -> torch.dtype:
    """The real dtype with the largest rounding step of the inexact ones; float64 if there is none.

    Under autocast a float32 gradient comes out of bfloat16 products: a call is as precise as its
    least precise result.
    """
    real = [
        torch.float64 if dtype is torch.complex128 else _REAL.get(dtype, dtype)
        for dtype in dtypes
        if dtype.is_floating_point or dtype.is_complex
    ]
    return max(real, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float64)


@dataclass(frozen=True)
class Measure:
    """Distance of one tensor from its reference.

    cosine and relative are over the whole tensor; element is max|x−ref|/max|ref|; distance and
    peak are ‖x−ref‖₂ and max|x−ref|; nonfinite says that NaN or Inf stand in one and not the
    other; shape that sizes or kinds differ.
    """

    cosine: float
    relative: float
    element: float
    distance: float
    peak: float
    nonfinite: bool = False
    shape: bool = False

    def kind(self, limits: Thresholds) -> str | None:
        """``shape``, ``nonfinite``, ``wrong``, ``element``, ``precision``, or None when fine."""
        if self.shape:
            return "shape"
        if self.nonfinite:
            return "nonfinite"
        if not self.cosine >= limits.cosine or not self.relative <= limits.relative:
            return "wrong"
        if self.element > limits.element:
            return "element"
        return "precision" if self.relative > limits.precision else None


EXACT = Measure(1.0, 0.0, 0.0, 0.0, 0.0)
MISSHAPEN = Measure(math.nan, math.inf, math.inf, math.inf, math.inf, shape=True)


def _flat(tensor: Tensor) -> Tensor:
    flat = tensor.detach().to("cpu")
    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj())
    return flat.to(torch.float64).reshape(-1)


def measure(x: Tensor, reference: Tensor) -> Measure:
    """Compare `x` with `reference`, both of any real, complex, integer or bool dtype."""
    if x.shape != reference.shape or x.is_complex() != reference.is_complex():
        return MISSHAPEN
    if x.layout is not torch.strided:
        x, reference = x.to_dense(), reference.to_dense()
    if x.numel() == 0:
        return EXACT
    a, b = _flat(x), _flat(reference)
    finite = torch.isfinite(b)
    nonfinite = False
    if not bool(finite.all()) or not bool(torch.isfinite(a).all()):
        other_a, other_b = a[~finite], b[~finite]
        agree = (other_a == other_b) | (other_a.isnan() & other_b.isnan())
        nonfinite = not bool(agree.all()) or not bool(torch.isfinite(a[finite]).all())
        both = finite & torch.isfinite(a)
        a, b = a[both], b[both]
        if a.numel() == 0:
            return Measure(1.0, 0.0, 0.0, 0.0, 0.0, nonfinite=nonfinite)
    difference = a - b
    distance, norm_a, norm_b = (float(torch.linalg.vector_norm(v)) for v in (difference, a, b))
    peak, top = float(difference.abs().max()), float(b.abs().max())
    if distance == 0.0:
        return Measure(1.0, 0.0, 0.0, 0.0, 0.0, nonfinite=nonfinite)
    product = norm_a * norm_b
    cosine = float(torch.dot(a, b)) / product if product > 0 else 0.0
    relative = distance / norm_b if norm_b > 0 else math.inf
    return Measure(
        cosine, relative, peak / top if top > 0 else math.inf, distance, peak, nonfinite=nonfinite
    )
