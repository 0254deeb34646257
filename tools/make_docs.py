#!/usr/bin/env python3
"""Write the pages that are made from the code; ``--check`` only says whether they are current."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from mccl.config import WITHOUT_EFFECT, Config

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEAD = """# Configuration

<!-- Made from src/mccl/config.py by `make docs`; edit that instead. -->

Settings come from the environment. A value that is not understood stops the program and says what
is accepted; a `MCCL_*` name that is not listed here is warned about, with the nearest one that is.
Where a setting has several names, the first that is set counts. `mccl doctor` shows what every
setting resolved to and where the value came from. All ranks of a job should have the same settings.

Sizes are in bytes and take `K`, `M` and `G` (powers of 1024). Switches take `1`/`0`,
`true`/`false`, `yes`/`no` or `on`/`off`.
"""

TAIL = """
## Names that have no effect

Other software of this name reads these. They are reported once when set, and ignored.

| Name | Why |
|---|---|
"""


def lines() -> Iterator[str]:
    """The page, line by line."""
    yield HEAD
    for section, rows in groupby(Config().describe(), key=lambda row: row.section):
        yield f"## {section}\n"
        yield "| Name | Default | Meaning |\n|---|---|---|"
        for row in rows:
            names = "<br>".join(f"`{name}`" for name in row.env)
            doc = row.doc.replace("|", "\\|")
            yield f"| {names} | {'' if row.default == '-' else f'`{row.default}`'} | {doc} |"
        yield ""
    yield TAIL.strip("\n")
    for name, why in WITHOUT_EFFECT.items():
        yield f"| `{name}` | {why} |"


def main() -> int:
    """Entry point; with --check, 1 when the page is stale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    text = "\n".join(lines()) + "\n"
    if parser.parse_args().check:
        current = PAGE.exists() and PAGE.read_text() == text
        print(f"{PAGE.name}: {'current' if current else 'stale; run `make docs`'}")
        return int(not current)
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
