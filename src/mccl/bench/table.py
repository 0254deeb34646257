"""Tables over records: nccl-tests' columns, and contestants side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mccl.bench.record import Case, Record
from mccl.bench.sweep import TCP, bus_bandwidth
from mccl.bench.units import format_seconds, format_size

GB = 1e9


def render(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns aligned: the first to the left, the others to the right."""
    lines = [list(header), *[list(row) for row in rows]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]

    def one(line: Sequence[str]) -> str:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        return "  ".join(cells).rstrip()

    return "\n".join([one(lines[0]), "  ".join("-" * w for w in widths), *map(one, lines[1:])])


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The same as a Markdown table."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _timing(case: Case | None) -> list[str]:
    if case is None:
        return ["-", "-", "-", "-"]
    nbytes = case.labels["nbytes"]
    assert isinstance(nbytes, int)
    wrong = case.facts.get("wrong")
    return [
        f"{case.median * 1e6:.1f}",
        f"{nbytes / case.median / GB:.3f}",
        f"{bus_bandwidth(case) / GB:.3f}",
        "N/A" if wrong is None else f"{wrong:.0f}",
    ]


def nccl_tests(record: Record, series: str, ranks: int, collective: str) -> str:
    """The table nccl-tests prints, for one backend: out of place and in place, µs and GB/s."""
    cases = record.find(series, ranks=ranks, collective=collective)
    rows = []
    for requested in dict.fromkeys(case.labels["requested"] for case in cases):
        same = [case for case in cases if case.labels["requested"] == requested]
        out = next((case for case in same if not case.labels["in_place"]), None)
        inside = next((case for case in same if case.labels["in_place"]), None)
        labels = same[0].labels
        redop = labels["redop"] if collective in _REDUCING else "none"
        left = [str(labels["nbytes"]), str(labels["count"]), str(labels["dtype"]), str(redop)]
        rows.append(left + _timing(out) + _timing(inside))
    timing = ["time us", "algbw GB/s", "busbw GB/s", "#wrong"]
    return render(["size B", "count", "type", "redop", *timing, *timing], rows)


_REDUCING = ("all_reduce", "reduce", "reduce_scatter")


def side_by_side(
    record: Record, ranks: int, collective: str, leader: str, style: str = "plain"
) -> str:
    """Median time and bus bandwidth of each contestant, spread, and the leader's ratio to each."""
    cases = record.find(ranks=ranks, collective=collective)
    others = [s for s in dict.fromkeys(case.series for case in cases) if s != leader]
    order = [leader, *[s for s in others if s != TCP], *([TCP] if TCP in others else [])]
    header = ["size"]
    for name in order:
        header += [f"{name} time", "GB/s"]
    header += [f"{leader}/{name}" for name in order[1:]]
    rows = []
    for nbytes in dict.fromkeys(case.labels["nbytes"] for case in cases):
        assert isinstance(nbytes, int)
        found = {case.series: case for case in cases if case.labels["nbytes"] == nbytes}
        row = [format_size(nbytes)]
        for name in order:
            row += _time_and_rate(found.get(name))
        row += [_ratio(found.get(leader), found.get(name)) for name in order[1:]]
        rows.append(row)
    return markdown(header, rows) if style == "markdown" else render(header, rows)


def _time_and_rate(case: Case | None) -> list[str]:
    if case is None:
        return ["-", "-"]
    low, high = case.spread
    spread = f"[{format_seconds(low)}..{format_seconds(high)}]"
    return [f"{format_seconds(case.median)} {spread}", f"{bus_bandwidth(case) / GB:.3f}"]


def _ratio(leader: Case | None, other: Case | None) -> str:
    if leader is None or other is None:
        return "-"
    return f"{other.median / leader.median:.3f}"
