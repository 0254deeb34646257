"""What the check says: findings, notes and the report made of them."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from mccl.numerics.call import Call
from mccl.numerics.compare import Measure

KINDS = {
    "wrong": "cosine or relative error beyond the limit",
    "element": "a few elements are far off",
    "precision": "less precise than its dtype should be",
    "tf32": "rounded to TF32 (10 bits of mantissa), as asked for by a global setting",
    "nonfinite": "NaN or Inf where the reference has none, or the other way round",
    "shape": "another shape, or real instead of complex",
    "missing": "no gradient where the reference has one",
    "nondeterministic": "two equal calls gave different results",
    "integer": "integer or boolean values differ",
    "error": "the device raised an error",
}
"""Every `kind` a finding can have."""


@dataclass
class Finding:
    """One tensor that the device got wrong.

    name: the layer, as ``named_modules`` gives it ("" is the model itself). op: the function the
    layer called. phase: "forward" or "backward". tensor: "output", or the input or parameter
    whose gradient it is. cosine and relative_error: against float64 on the CPU.
    """

    name: str
    op: str
    phase: str
    tensor: str
    kind: str
    cosine: float
    relative_error: float
    element_error: float
    shape: tuple[int, ...]
    dtype: str
    explanation: str
    call: Call | None = field(default=None, repr=False)

    def severity(self) -> tuple[int, float]:
        """For sorting, worst first: what breaks, then by relative error."""
        hard = {"error", "shape", "missing", "nonfinite"}
        soft = {"precision", "tf32", "nondeterministic"}
        rank = 0 if self.kind in hard else 2 if self.kind in soft else 1
        error = self.relative_error if math.isfinite(self.relative_error) else math.inf
        return rank, -error

    def to_json(self) -> dict[str, Any]:
        """Plain values; not-a-number and infinities as null (JSON has none)."""
        out = {k: getattr(self, k) for k in self.__dataclass_fields__ if k != "call"}
        return {k: None if _unprintable(v) else v for k, v in out.items()}


def _unprintable(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


@dataclass
class Layer:
    """The worst comparison of one layer, findings or not."""

    name: str
    calls: int = 0
    op: str = ""
    phase: str = ""
    tensor: str = ""
    cosine: float = 1.0
    relative_error: float = 0.0

    def see(self, op: str, phase: str, tensor: str, measured: Measure) -> None:
        """Keep `measured` if it is the worst so far."""
        if measured.relative >= self.relative_error:
            self.op, self.phase, self.tensor = op, phase, tensor
            self.cosine, self.relative_error = measured.cosine, measured.relative


@dataclass
class EndToEnd:
    """The whole model at once: the worst output and the worst gradient, and whether they pass."""

    ok: bool
    comparable: bool
    output_cosine: float = 1.0
    output_error: float = 0.0
    gradient: str = ""
    gradient_cosine: float = 1.0
    gradient_error: float = 0.0
    explanation: str = ""


@dataclass
class Report:
    """Everything one check found. ``str(report)`` is the table, worst first."""

    model: str
    device: str
    dtype: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    layers: dict[str, Layer] = field(default_factory=dict)
    end_to_end: EndToEnd | None = None
    calls: int = 0
    seconds: float = 0.0
    peak_bytes: int = 0

    @property
    def ok(self) -> bool:
        """No finding."""
        return not self.findings

    @property
    def exit_code(self) -> int:
        """0 when ok, else 1: for a CI job."""
        return 0 if self.ok else 1

    def note(self, text: str) -> None:
        """Add something worth knowing that is no finding; each text once."""
        if text not in self.notes:
            self.notes.append(text)

    def sort(self) -> None:
        """Worst first."""
        self.findings.sort(key=Finding.severity)

    def blamed(self) -> list[str]:
        """Names of the layers with findings, worst first, each once."""
        return list(dict.fromkeys(finding.name for finding in self.findings))

    def to_json(self) -> str:
        """The report as a JSON object."""
        document = {
            "model": self.model,
            "device": self.device,
            "dtype": self.dtype,
            "ok": self.ok,
            "findings": [finding.to_json() for finding in self.findings],
            "notes": self.notes,
            "layers": [_clean(asdict(layer)) for layer in self.layers.values()],
            "end_to_end": _clean(asdict(self.end_to_end)) if self.end_to_end else None,
            "calls": self.calls,
            "seconds": round(self.seconds, 3),
            "peak_bytes": self.peak_bytes,
        }
        return json.dumps(document, indent=1, allow_nan=False)

    def __str__(self) -> str:
        from mccl.numerics.table import report_text

        return report_text(self)


def _clean(values: dict[str, Any]) -> dict[str, Any]:
    return {k: None if _unprintable(v) else v for k, v in values.items()}
