"""Lists of hosts, and the command that each host is to run.

Pure text in, pure text out: nothing here opens a connection, so all of it is tested as is.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


class HostsError(ValueError):
    """A list of hosts cannot be read; the text says where and what is expected."""


@dataclass(frozen=True, slots=True)
class Host:
    """One machine: what ``ssh`` calls it, its data address, and its number of ranks (or None)."""

    ssh: str
    address: str
    slots: int | None = None


def parse_hosts(text: str) -> list[Host]:
    """Hosts from ``a,b,c``, from lines ``host [slots=N]``, or from MLX's ``{"hosts": [...]}``.

    Raises:
        HostsError: the text is none of these, or names no host, or one twice.
    """
    stripped = text.strip()
    if stripped.startswith(("{", "[")):
        hosts = _from_json(stripped)
    else:
        lines = stripped.splitlines() if "\n" in stripped else stripped.split(",")
        hosts = [_from_line(n, line) for n, line in enumerate(lines, 1) if _content(line)]
    if not hosts:
        raise HostsError("no host is named; expected a,b,c or one host a line")
    names = [host.ssh for host in hosts]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise HostsError(f"{', '.join(twice)} is named twice; give slots=N for several ranks")
    return hosts


def read_hosts(argument: str) -> list[Host]:
    """Hosts from a file of that name where there is one, else from the text itself."""
    path = Path(argument).expanduser()
    try:
        if path.is_file():
            return parse_hosts(path.read_text() + "\n")
        if path.suffix or "/" in argument:
            raise HostsError("there is no such file")
        return parse_hosts(argument)
    except HostsError as error:
        raise HostsError(f"--hosts {argument}: {error}") from error


def _content(line: str) -> str:
    return line.partition("#")[0].strip()


def _from_line(number: int, line: str) -> Host:
    found = re.fullmatch(r"(\S+)(?:\s+slots\s*=\s*([1-9]\d*))?", _content(line))
    if found is None or found[1].startswith("-"):
        raise HostsError(f"line {number}, {line.strip()!r}: expected HOST or HOST slots=N")
    return Host(found[1], found[1].rpartition("@")[2], int(found[2]) if found[2] else None)


def _from_json(text: str) -> list[Host]:
    expected = 'expected {"hosts": [{"ssh": "name", "ips": ["10.0.0.1"]}, ...]}'
    try:
        data = json.loads(text)
        entries = data["hosts"] if isinstance(data, dict) else data
        return [
            Host(entry["ssh"], (entry.get("ips") or [entry["ssh"].rpartition("@")[2]])[0])
            for entry in entries
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HostsError(f"{expected} ({type(error).__name__}: {error})") from error


def remote_command(
    hosts: Sequence[Host],
    node: int,
    *,
    python: str,
    folder: str,
    ranks: int,
    master: tuple[str, int],
    script: Sequence[str],
    environment: Sequence[tuple[str, str]] = (),
) -> str:
    """The shell line that host number `node` runs: the same ``mccl run``, told where it stands."""
    words = [python, "-m", "mccl", "run", "-n", str(hosts[node].slots or ranks)]
    words += ["--nnodes", str(len(hosts)), "--node-rank", str(node)]
    words += ["--master", join_master(*master), "--", *script]
    settings = [f"{name}={shlex.quote(value)}" for name, value in environment]
    line = " ".join(["exec", "env", *settings, shlex.join(words)])
    return f"cd {shlex.quote(folder)} && {line}"


def join_master(address: str, port: int) -> str:
    """``host:port``, with an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def split_master(text: str, default_port: int) -> tuple[str, int]:
    """Address and port of ``host``, ``host:port`` or ``[v6]:port``.

    Raises:
        HostsError: the port is no port.
    """
    found = re.fullmatch(r"(?:\[([^\]]+)\]|([^:]+))(?::(\d{1,5}))?", text)
    if found is None and text.count(":") > 1:
        return text, default_port
    port = int(found[3] or default_port) if found else 0
    if found is None or not 0 < port < 65536:
        raise HostsError(f"--master {text}: expected HOST or HOST:PORT")
    return found[1] or found[2], port
