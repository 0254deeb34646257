"""``mccl doctor``: examine this machine and say what to mend."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import textwrap
from typing import Any

MARKS = {"ok": ("ok  ", "32"), "warn": ("warn", "33"), "fail": ("FAIL", "31")}


def add_parser(subparsers: Any) -> None:
    """Add ``doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        help="examine this machine and say what to mend",
        description="Examine this machine. The exit code is 1 when something failed, else 0.",
    )
    parser.add_argument("--json", action="store_true", help="findings as JSON, for programs")
    parser.add_argument("--no-self-test", action="store_true", help="start no ranks")
    parser.add_argument("--settings", action="store_true", help="only list every setting")
    parser.add_argument("--metal", action="store_true", help="prove the handoff on this Mac's GPU")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the parsed command; 1 when something failed, else 0."""
    if options.settings:
        return list_settings()
    if options.metal:
        from mccl.doctor import metal

        return metal.run()
    from mccl.doctor import EXAMINATIONS, Finding, Status, examine

    sections = [name for name in EXAMINATIONS if name != "self-test" or not options.no_self_test]
    findings: list[Finding] = []
    for finding in examine(sections):
        if not options.json:
            if not findings or findings[-1].section != finding.section:
                print(f"\n{finding.section}", flush=True)
            show(finding.name, finding.status, finding.value, finding.advice)
        findings.append(finding)
    failed = sum(finding.status is Status.FAIL for finding in findings)
    if options.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
        return int(failed > 0)
    warned = sum(finding.status is Status.WARN for finding in findings)
    if failed:
        print(f"\n{failed} of {len(findings)} findings failed: a job will not run as it is.")
    elif warned:
        print(f"\nFit to run; {warned} of {len(findings)} findings are worth mending.")
    else:
        print(f"\nAll {len(findings)} findings are fine.")
    return int(failed > 0)


def show(name: str, status: str, value: str, advice: str) -> None:
    """One finding, its advice below it."""
    mark, colour = MARKS[status]
    if sys.stdout.isatty():
        mark = f"\033[{colour}m{mark}\033[0m"
    first, *rest = textwrap.wrap(value, 76, break_long_words=False) or [""]
    print(f"  {mark}  {name:16s} {first}")
    for line in rest:
        print(f"{'':25s}{line}")
    for line in textwrap.wrap(advice, 74, break_long_words=False):
        print(f"{'':23s}> {line}")


def list_settings() -> int:
    """Every setting with its value and where that came from."""
    from mccl.config import Config

    for row in Config.from_env().describe():
        print(f"{row.env[0]:26s} {row.value:16s} {row.source:26s} {row.name}")
    return 0
