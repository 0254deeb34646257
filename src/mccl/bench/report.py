"""``mccl bench report DIR``: one self-contained HTML page and PNG figures from a folder of records.

Each figure names the command, the machine and the date of what it draws. Of several records of one
kind the newest is drawn; sweeps on clusters of different sizes are joined into one figure.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import html
import importlib.util
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mccl.bench import compare, converge, figures, overlap, peers, stress, train
from mccl.bench.launch import Launcher
from mccl.bench.record import Record, load
from mccl.bench.table import side_by_side
from mccl.errors import UsageError


@dataclass(frozen=True)
class Panel:
    """One figure of the page: its drawing, what was measured, and its numbers as text."""

    name: str
    heading: str
    figure: Any
    sources: list[Record]
    text: str


_HEADINGS = {
    "overlap": "Communication behind compute",
    "train": "Training throughput",
    "converge": "Convergence",
    "stress": "Endurance",
}
_DRAW: dict[str, tuple[Callable[[Record], Any], Callable[[Record], None]]] = {
    "overlap": (figures.overlap_bars, overlap.print_record),
    "train": (figures.throughput, train.print_record),
    "converge": (figures.convergence, converge.print_record),
    "stress": (figures.endurance, stress.print_record),
}


def read_folder(folder: Path) -> list[Record]:
    """All records below ``folder``, oldest first.

    Raises:
        UsageError: there is none, or a JSON file is no record.
    """
    records = [load(path) for path in sorted(folder.rglob("*.json"))]
    if not records:
        raise UsageError(f"no records (*.json of mccl bench) in {folder.absolute()}")
    return sorted(records, key=lambda record: record.date)


def joined_clusters(records: list[Record], kind: str) -> list[tuple[Record, list[Record]]]:
    """Records of ``kind`` on emulated hosts, joined over the number of hosts, one a setting.

    Of two records that measured the same number of hosts the newer counts.
    """
    groups: dict[tuple[object, ...], dict[int, Record]] = {}
    for record in records:
        settings = record.settings
        if record.kind == kind and "hosts" in settings:
            key = (
                settings["mtu"],
                settings.get("latency_ms"),
                settings.get("schedule"),
                settings["series"][0],
            )
            groups.setdefault(key, {})[settings["hosts"]] = record
    joined = []
    for parts in groups.values():
        sources = [parts[hosts] for hosts in sorted(parts)]
        last = sources[-1]
        titles = "; ".join(str(part.settings["title"]) for part in sources)
        rates = {part.settings["hosts"]: part.settings["rate_bits"] for part in sources}
        settings = last.settings | {
            "leader": last.settings["series"][0],
            "title": titles,
            "rates": rates,
        }
        cases = [case for part in sources for case in part.cases]
        whole = Record(kind, settings, cases, [], last.machine, last.command, last.date)
        joined.append((whole, sources))
    return joined


def panels(records: list[Record]) -> Iterator[Panel]:
    """Every figure that the records have the numbers for."""
    for number, (whole, sources) in enumerate(joined_clusters(records, "all_reduce")):
        text = "\n\n".join(
            f"{part.settings['title']}\n"
            + side_by_side(part, part.settings["hosts"], "all_reduce", part.settings["series"][0])
            for part in sources
        )
        yield Panel(
            f"cluster-{number}",
            "All-reduce on an emulated cluster",
            figures.cluster_bandwidth(whole),
            sources,
            text,
        )
    printers: dict[str, Callable[[Record], None]] = {
        "compare": compare.print_record,
        "peers": peers.print_record,
    }
    for kind, printer in printers.items():
        newest = _newest(records, kind)
        if newest is None:
            continue
        if kind == "peers":
            for case in newest.cases:
                case.labels.setdefault("collective", "all_reduce")
        for world in newest.labels("ranks"):
            yield Panel(
                f"{kind}-{world}",
                f"Against its peers, {world} ranks",
                figures.sizes_by_bandwidth(newest, world),
                [newest],
                _text(printer, newest),
            )
    for number, (whole, sources) in enumerate(joined_clusters(records, "overlap")):
        text = _text(overlap.print_record, whole)
        heading = f"{_HEADINGS['overlap']}, emulated cluster"
        drawn = figures.overlap_bars(whole)
        yield Panel(f"overlap-cluster-{number}", heading, drawn, sources, text)
    single = [record for record in records if "hosts" not in record.settings]
    for kind, (draw, print_it) in _DRAW.items():
        newest = _newest(single if kind == "overlap" else records, kind)
        if newest is not None:
            yield Panel(kind, _HEADINGS[kind], draw(newest), [newest], _text(print_it, newest))


def _newest(records: list[Record], kind: str) -> Record | None:
    return next((record for record in reversed(records) if record.kind == kind), None)


def _text(printer: Callable[[Record], None], record: Record) -> str:
    buffer = io.StringIO()
    with contextlib.redirect_stdout(buffer):
        printer(record)
    return buffer.getvalue().strip()


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
figure { margin: 0; } img { max-width: 100%; height: auto; }
figcaption, .about { color: #555; font-size: .88rem; }
code { background: #f3f3f3; padding: .1em .3em; overflow-wrap: anywhere; }
pre { overflow-x: auto; background: #f7f7f7; padding: .8rem; font-size: .78rem; line-height: 1.35; }
summary { cursor: pointer; color: #0072B2; }
"""


def page(found: list[Panel], images: dict[str, bytes]) -> str:
    """The HTML page, images inside."""
    parts = []
    for panel in found:
        data = base64.b64encode(images[panel.name]).decode()
        sources = "".join(
            f"<br><code>{html.escape(record.command)}</code> {html.escape(record.date)}"
            for record in panel.sources
        )
        machines = dict.fromkeys(record.machine.sentence() for record in panel.sources)
        parts.append(
            f"<h2>{html.escape(panel.heading)}</h2>\n<figure>"
            f'<img alt="{html.escape(panel.heading)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{html.escape('; '.join(machines))}{sources}</figcaption></figure>\n"
            f"<details><summary>numbers</summary><pre>{html.escape(panel.text)}</pre></details>"
        )
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>MCCL benchmarks</title><style>{_STYLE}</style>\n"
        '<h1>MCCL benchmarks</h1>\n<p class="about">Medians; error bars and brackets span the '
        "medians of interleaved rounds. Bus bandwidth is size / time times the collective's factor "
        "(2(N-1)/N for all-reduce), so it compares with one link's rate at any number of ranks.</p>"
        f"\n{body}\n</html>\n"
    )


def run(args: argparse.Namespace, launcher: Launcher) -> int:
    """Draw everything in the folder; 0."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("figures need matplotlib: pip install 'mccl[bench]'")
    folder = Path(args.folder)
    target = Path(args.out) if args.out else folder
    target.mkdir(parents=True, exist_ok=True)
    found = list(panels(read_folder(folder)))
    if not found:
        raise UsageError(f"the records in {folder.absolute()} hold nothing that is drawn")
    images = {}
    for panel in found:
        buffer = io.BytesIO()
        panel.figure.savefig(buffer, format="png", dpi=140)
        images[panel.name] = buffer.getvalue()
        (target / f"{panel.name}.png").write_bytes(buffer.getvalue())
    path = target / "report.html"
    path.write_text(page(found, images))
    print(f"{path}: {len(found)} figures, each also as PNG beside it")
    return 0
