"""Sizes, rates and times as people write them.

Binary prefixes for sizes on the command line (``25M`` is 25 MiB, as in nccl-tests), decimal
ones for rates (``200mbit`` is 200·10⁶ bit/s, as in ``tc``; GB/s is 10⁹ bytes a second).
"""

from __future__ import annotations

import re

from mccl.errors import UsageError

_BINARY = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_RATES = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def parse_size(text: str) -> int:
    """Bytes meant by ``text``: ``"8"``, ``"64K"``, ``"25MiB"``, ``"1G"``.

    Raises:
        UsageError: ``text`` is no size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise UsageError(f"size {text!r} not understood: write bytes or a number with K, M or G")
    size = float(match[1]) * _BINARY[match[2].upper()]
    if size != int(size):
        raise UsageError(f"size {text!r} is no whole number of bytes")
    return int(size)


def parse_sizes(text: str) -> list[int]:
    """Sizes meant by a list ``"16M,64M"`` or a doubling range ``"8-1G"`` (``"8-1G*4"``: times 4).

    Raises:
        UsageError: the text is neither, or the range is empty.
    """
    if "-" not in text:
        return [parse_size(part) for part in text.split(",")]
    bounds, _, factor_text = text.partition("*")
    first_text, _, last_text = bounds.partition("-")
    first, last = parse_size(first_text), parse_size(last_text)
    factor = int(factor_text) if factor_text.isdigit() else 2
    if first < 1 or last < first or factor < 2:
        raise UsageError(f"size range {text!r} is empty: write FIRST-LAST or FIRST-LAST*FACTOR")
    sizes = [first]
    while sizes[-1] * factor <= last:
        sizes.append(sizes[-1] * factor)
    return sizes


def format_size(nbytes: int) -> str:
    """``25 MiB``, ``1 KiB``, ``12 B``; a size that is no round multiple keeps one decimal."""
    for suffix, unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= unit:
            scaled = nbytes / unit
            return f"{scaled:.0f} {suffix}" if scaled == int(scaled) else f"{scaled:.1f} {suffix}"
    return f"{nbytes} B"


def format_seconds(seconds: float) -> str:
    """Three significant digits in µs, ms or s."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds:.4g} s"


def parse_rate(text: str) -> float:
    """Bits a second meant by ``"200mbit"``, ``"1gbit"`` (the notation of ``tc``).

    Raises:
        UsageError: ``text`` is no rate.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?bit)\s*", text, re.IGNORECASE)
    if match is None:
        raise UsageError(f"rate {text!r} not understood: write for example 200mbit or 1gbit")
    return float(match[1]) * _RATES[match[2].lower()]


def parse_ints(text: str) -> list[int]:
    """Whole numbers of a list ``"4,8,16"``.

    Raises:
        UsageError: one part is no whole number above 0.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UsageError(f"{text!r} is no list of whole numbers above 0, such as 2,4,8")
    return [int(part) for part in parts]
