"""A report as text: what is wrong first, then the worst of what is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mccl.numerics.findings import EndToEnd, Finding, Report

SHOWN = 40
"""Rows of findings shown; the JSON has them all."""

CALM = 5
"""Layers shown when nothing is wrong."""


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows padded to a common width a column; the first row is the heading."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return [line.rstrip() for line in lines]


def layer_name(name: str) -> str:
    """The model itself has the empty name."""
    return name or "(model)"


def _finding_row(finding: Finding) -> list[str]:
    return [
        layer_name(finding.name),
        finding.phase,
        finding.tensor,
        finding.kind,
        f"{finding.cosine:.6f}",
        f"{finding.relative_error:.2e}",
        finding.op,
        "x".join(map(str, finding.shape)),
        finding.dtype,
    ]


def report_text(report: Report) -> str:
    """The table that ``str(report)`` gives."""
    verdict = "ok" if report.ok else f"{len(report.findings)} finding(s)"
    lines = [f"{report.model} on {report.device} ({report.dtype}) against float64: {verdict}"]
    if report.findings:
        heading = ["layer", "phase", "tensor", "kind", "cosine", "rel. error", "op", "shape"]
        rows = [[*heading, "dtype"]]
        rows += [_finding_row(finding) for finding in report.findings[:SHOWN]]
        lines += ["", *columns(rows)]
        hidden = len(report.findings) - SHOWN
        if hidden > 0:
            lines.append(f"... and {hidden} more (see the JSON)")
        lines.append("")
        for text in dict.fromkeys(finding.explanation for finding in report.findings):
            lines.append(f"* {text}")
    else:
        worst = sorted(report.layers.values(), key=lambda layer: -layer.relative_error)[:CALM]
        rows = [["worst layers", "phase", "tensor", "cosine", "rel. error", "op"]]
        rows += [
            [
                layer_name(layer.name),
                layer.phase,
                layer.tensor,
                f"{layer.cosine:.6f}",
                f"{layer.relative_error:.2e}",
                layer.op,
            ]
            for layer in worst
        ]
        lines += ["", *columns(rows)]
    lines.append("")
    if report.end_to_end is not None:
        lines.append(_end_to_end(report.end_to_end))
    lines += [f"note: {note}" for note in report.notes]
    lines.append(
        f"{report.calls} calls in {len(report.layers)} layers checked in {report.seconds:.1f} s, "
        f"peak memory {report.peak_bytes / 2**20:.0f} MiB"
    )
    return "\n".join(lines)


def _end_to_end(whole: EndToEnd) -> str:
    if not whole.comparable:
        return f"end to end: not compared: {whole.explanation}"
    verdict = "ok" if whole.ok else "DIFFERS"
    text = (
        f"end to end: {verdict}; worst output: cosine {whole.output_cosine:.6f}, "
        f"rel. error {whole.output_error:.2e}; worst gradient: {whole.gradient or 'none'}, "
        f"cosine {whole.gradient_cosine:.6f}, rel. error {whole.gradient_error:.2e}"
    )
    return f"{text} ({whole.explanation})" if whole.explanation else text
