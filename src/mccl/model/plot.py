"""A figure of a forecast: bus bandwidth by world size, one line for each algorithm and bucket."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mccl.errors import UsageError
from mccl.model.forecast import MIB, Row

_STYLE = {"ring": "-", "two_level": "--", "rabenseifner": ":", "double_tree": "-."}


def save(rows: Sequence[Row], goodput: float, path: Path) -> None:
    """Write a PNG (or what the suffix says). UsageError where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("a plot needs matplotlib: pip install 'mccl[bench]'") from error
    stepped = any(row.step is not None for row in rows)
    figure = Figure(figsize=(11 if stepped else 6, 4), layout="constrained")
    panels = figure.subplots(1, 2 if stepped else 1, squeeze=False)[0]
    panels[0].axhline(goodput / 1e9, color="0.6", linewidth=1, label="TCP goodput")
    lines = dict.fromkeys((row.bucket, row.algorithm) for row in rows)
    buckets = sorted({bucket for bucket, _ in lines})
    for bucket, algorithm in lines:
        line = [row for row in rows if (row.bucket, row.algorithm) == (bucket, algorithm)]
        worlds = [row.world for row in line]
        look = {
            "linestyle": _STYLE[algorithm],
            "color": f"C{buckets.index(bucket)}",
            "marker": ".",
            "label": f"{algorithm}, {bucket / MIB:g} MB",
        }
        panels[0].plot(worlds, [row.busbw / 1e9 for row in line], **look)
        if stepped:
            steps = [row.step for row in line if row.step is not None]
            panels[1].plot(worlds, [100 * s.efficiency for s in steps], **look)
    panels[0].set(xlabel="hosts", ylabel="bus bandwidth (GB/s)", ylim=(0, None))
    if stepped:
        panels[1].set(xlabel="hosts", ylabel="scaling efficiency (%)", ylim=(0, 102))
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=150)
