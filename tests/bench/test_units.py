"""Sizes, rates and times in words."""

from __future__ import annotations

import pytest

from mccl.bench import units
from mccl.errors import UsageError


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("8", 8), ("1K", 1024), ("25MiB", 25 << 20), ("1g", 1 << 30), ("0.5K", 512)],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert units.parse_size(text) == nbytes


def test_lists_and_ranges() -> None:
    assert units.parse_sizes("16M,64M") == [16 << 20, 64 << 20]
    assert units.parse_sizes("8-64") == [8, 16, 32, 64]
    assert units.parse_sizes("8-1K*4") == [8, 32, 128, 512]
    assert units.parse_ints("2,4") == [2, 4]
    assert units.parse_rate("200mbit") == 2e8


@pytest.mark.parametrize("text", ["", "x", "-5", "0.3", "5T"])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(UsageError):
        units.parse_size(text)


@pytest.mark.parametrize("text", ["64-8", "0-8", "8-64*1"])
def test_empty_ranges_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="empty"):
        units.parse_sizes(text)


def test_other_words_are_refused() -> None:
    with pytest.raises(UsageError, match="200mbit"):
        units.parse_rate("fast")
    with pytest.raises(UsageError, match="whole numbers"):
        units.parse_ints("2,0")


def test_formats() -> None:
    assert units.format_size(25 << 20) == "25 MiB"
    assert units.format_size(12) == "12 B"
    assert units.format_size(1536) == "1.5 KiB"
    assert units.format_seconds(2.5e-5) == "25 µs"
    assert units.format_seconds(0.0125) == "12.5 ms"
    assert units.format_seconds(2.0) == "2 s"
