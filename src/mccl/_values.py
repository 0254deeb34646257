"""The values settings can take, and how each is read from text.

A parser takes the text of an environment variable and raises ``ValueError`` with what is accepted,
as the end of the sentence "expected ...".
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class InterfaceRule:
    """Which network interfaces may be used, in NCCL's grammar.

    ``eth,en`` prefixes; ``=eth0,eth1`` exact names; ``^docker,lo`` all but these prefixes;
    ``^=lo`` all but these exact names. Several interfaces that match are several rails.
    """

    names: tuple[str, ...]
    exact: bool = False
    exclude: bool = False

    def matches(self, interface: str) -> bool:
        """Whether `interface` may be used."""
        named = any(
            interface == name if self.exact else interface.startswith(name) for name in self.names
        )
        return named != self.exclude

    def __str__(self) -> str:
        return f"{'^' * self.exclude}{'=' * self.exact}{','.join(self.names)}"


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file as it was when the settings were read, so that all of a process sees one text."""

    path: Path
    text: str

    @property
    def digest(self) -> str:
        """Equal where the text is, wherever the file lies."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return f"{self.path} ({self.digest})"


Groups = str | int | tuple[tuple[int, ...], ...]
"""``"auto"``, ``"off"``, a group size, or explicit groups of ranks."""


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def parse_size(text: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([kmg]?)(?:i?b)?", text.strip().lower())
    if found is None:
        raise ValueError("a number of bytes, such as 262144, 256K or 4M")
    return int(found[1]) * _UNITS[found[2]]


def parse_optional_size(text: str) -> int | None:
    return parse_size(text) or None


def parse_integer(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d+", text.strip()) or not low <= int(text) <= high:
            raise ValueError(f"a whole number from {low} to {high}")
        return int(text)

    return parse


def parse_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise ValueError("a number of seconds greater than 0, such as 10 or 2.5")
    return value


def parse_milliseconds(text: str) -> float:
    if not re.fullmatch(r"\d+", text.strip()) or int(text) == 0:
        raise ValueError("a whole number of milliseconds greater than 0")
    return int(text) / 1000


_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def parse_boolean(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(f"one of {', '.join(_TRUE)} or {', '.join(_FALSE)}")
    return word in _TRUE


def parse_optional_boolean(text: str) -> bool | None:
    """A boolean, or None for ``auto``."""
    if text.strip().lower() == "auto":
        return None
    try:
        return parse_boolean(text)
    except ValueError as error:
        raise ValueError(f"auto, or {error}") from None


def parse_interfaces(text: str) -> InterfaceRule:
    found = re.fullmatch(r"(\^?)(=?)([^\^=]+)", text.strip())
    names = tuple(name.strip() for name in found[3].split(",")) if found else ()
    if found is None or not all(names):
        raise ValueError("interface names, such as en0, =eth0,eth1 or ^docker,lo")
    return InterfaceRule(names, exact=bool(found[2]), exclude=bool(found[1]))


def parse_choice(accepted: Mapping[str, str | None]) -> Callable[[str], str | None]:
    def parse(text: str) -> str | None:
        word = text.strip().lower().replace("-", "_")
        if word not in accepted:
            raise ValueError(f"one of {', '.join(accepted)}")
        return accepted[word]

    return parse


ALGORITHMS = (
    "auto",
    "binomial",
    "chain",
    "direct",
    "dissemination",
    "double_tree",
    "pairwise",
    "rabenseifner",
    "recursive_doubling",
    "ring",
    "two_level",
    "two_level_doubling",
)
"""Those of ``mccl.plans``, which this leaf may not import; a test compares the two."""

WIRE_DTYPES: dict[str, str | None] = {
    "none": None,
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "fp16": "float16",
}
LOG_LEVELS: dict[str, str | None] = {
    "error": "ERROR",
    "warn": "WARNING",
    "warning": "WARNING",
    "info": "INFO",
    "debug": "DEBUG",
    "trace": "DEBUG",
    "0": "WARNING",
    "1": "DEBUG",
}


def parse_text(text: str) -> str:
    return text.strip()


def parse_secret(text: str) -> bytes:
    if len(text) < 8:
        raise ValueError("at least 8 characters")
    return text.encode()


def parse_file(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_file():
        raise ValueError("the path of a file that exists")
    return path


def parse_text_file(text: str) -> TextFile:
    path = parse_file(text)
    try:
        return TextFile(path, path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"a file of text that can be read ({error})") from error


def parse_path(text: str) -> Path:
    return Path(text).expanduser()


def parse_groups(text: str) -> Groups:
    word = text.strip().lower()
    if word in ("auto", "off"):
        return word
    if word.isdigit() and int(word) >= 2:
        return int(word)
    groups = []
    for part in word.split(";"):
        ranks: list[int] = []
        for item in part.split(","):
            found = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", item)
            if found is None or word.isdigit():
                raise ValueError("auto, off, a group size of 2 or more, or ranks like 0-11;12-23")
            ranks.extend(range(int(found[1]), int(found[2] or found[1]) + 1))
        groups.append(tuple(ranks))
    everyone = [rank for group in groups for rank in group]
    if len(set(everyone)) != len(everyone) or not all(groups):
        raise ValueError("groups in which every rank stands once, like 0-11;12-23")
    return tuple(groups)


def show(value: object) -> str:
    """A value as text, for people; ``-`` for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, tuple):
        return ";".join(",".join(map(str, group)) for group in value)
    return str(value)
