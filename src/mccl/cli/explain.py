"""``mccl explain``: say in plain words what flight records of several ranks show."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import textwrap
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add ``explain``."""
    parser = subparsers.add_parser(
        "explain",
        help="say who waits for whom, from the flight records of a hung or failed run",
        description="Read flight records (MCCL_DUMP_DIR, SIGUSR1, mccl.dump_flight_recorder) and "
        "say who waits for whom and who never arrived. The exit code is 1 when something is "
        "wrong, 2 when the dumps cannot be read, else 0.",
    )
    parser.add_argument("dumps", nargs="+", type=Path, metavar="DUMPS", help="files or folders")
    parser.add_argument("--json", action="store_true", help="findings as JSON, for programs")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the parsed command; 0, 1 or 2 as the description says."""
    from mccl.observe.dumps import DumpError, read
    from mccl.observe.findings import examine

    try:
        groups = read(options.dumps)
    except (DumpError, OSError) as error:
        print(f"mccl explain: {error}", file=sys.stderr)
        return 2
    findings = {(group.name, group.ranks): examine(group) for group in groups}
    if options.json:
        flat = [dataclasses.asdict(f) for found in findings.values() for f in found]
        print(json.dumps(flat, indent=1))
    else:
        for group in groups:
            issued = max((n for view in group.views.values() for n in view.collectives), default=0)
            print(
                f"Group {group.title}, ranks {', '.join(map(str, group.ranks))}: dumps of "
                f"{len(group.views)} of {len(group.ranks)}, {issued} collectives"
            )
            for finding in findings[group.name, group.ranks]:
                show(finding.kind, finding.text)
            if not findings[group.name, group.ranks]:
                show("fine", "every recorded operation completed, the same on every rank")
    return int(any(f.wrong for found in findings.values() for f in found))


def show(kind: str, text: str) -> None:
    """One finding, wrapped."""
    first, *rest = textwrap.wrap(text, 86, break_long_words=False, break_on_hyphens=False)
    print(f"  {kind:9s} {first}")
    for line in rest:
        print(f"{'':12s}{line}")
