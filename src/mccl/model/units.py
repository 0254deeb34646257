"""Rates and times as people write them on links: ``10G``, ``0.59ms``."""

from __future__ import annotations

import re

_RATES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}


def parse_link(text: str) -> float:
    """Bits a second meant by ``"10G"``, ``"2.5G"`` or ``"200mbit"``. ValueError otherwise."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?)(?:bit(?:/s)?)?\s*", text.lower())
    if found is None or float(found[1]) == 0:
        raise ValueError(f"link {text!r} not understood: write for example 10G, 2.5G or 200mbit")
    return float(found[1]) * _RATES[found[2]]


def parse_time(text: str) -> float:
    """Seconds meant by ``"0.59ms"``, ``"306us"`` or ``"1.2s"``. ValueError otherwise."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|ms|us|µs)\s*", text.lower())
    if found is None:
        raise ValueError(f"time {text!r} not understood: write for example 0.59ms or 306us")
    return float(found[1]) * _TIMES[found[2]]
