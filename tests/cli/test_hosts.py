"""Host lists and the remote command line, as text."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from mccl.cli.hosts import (
    Host,
    HostsError,
    parse_hosts,
    read_hosts,
    remote_command,
    split_master,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b", [Host("a", "a"), Host("b", "b")]),
        ("me@a slots=2\n# spare\n\nb # slow\n", [Host("me@a", "a", 2), Host("b", "b")]),
        ('{"hosts": [{"ssh": "a", "ips": ["10.0.0.1"]}]}', [Host("a", "10.0.0.1")]),
        ('[{"ssh": "me@a", "ips": []}]', [Host("me@a", "a")]),
    ],
)
def test_forms(text: str, expected: list[Host]) -> None:
    assert parse_hosts(text) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no host"),
        ("# none\n", "no host"),
        ("a,a", "a is named twice"),
        ("a slots=0\n", "line 1"),
        ("a\n-oProxyCommand=x\n", "line 2"),
        ('{"hosts": [{"name": "a"}]}', "ssh"),
        ('{"hosts": 3}', "expected"),
    ],
)
def test_faults_say_where_and_what_is_expected(text: str, said: str) -> None:
    with pytest.raises(HostsError, match=said):
        parse_hosts(text)


def test_file_or_names(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a\n")
    assert read_hosts(str(file)) == [Host("a", "a")]
    assert read_hosts("a,b") == [Host("a", "a"), Host("b", "b")]
    with pytest.raises(HostsError, match="no such file"):
        read_hosts("hosts.txt")


def test_remote_command_quotes_everything() -> None:
    hosts = [Host("me@a", "fd00::1", 3), Host("b", "b")]
    line = remote_command(
        hosts,
        0,
        python="/opt/my python",
        folder="/data/it's here",
        ranks=1,
        master=(hosts[0].address, 29400),
        script=["train.py", "--name", "a b; rm -rf /"],
        environment=[("MCCL_SOCKET_IFNAME", "^lo; date")],
    )
    cd, _, rest = line.partition(" && ")
    assert shlex.split(cd) == ["cd", "/data/it's here"]
    words = shlex.split(rest)
    assert words[:4] == ["exec", "env", "MCCL_SOCKET_IFNAME=^lo; date", "/opt/my python"]
    assert words[words.index("-n") + 1] == "3"
    assert words[words.index("--master") + 1] == "[fd00::1]:29400"
    assert words[-3:] == ["train.py", "--name", "a b; rm -rf /"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ("a", 5)),
        ("a:80", ("a", 80)),
        ("[fd00::1]:80", ("fd00::1", 80)),
        ("[fd00::1]", ("fd00::1", 5)),
        ("fd00::1", ("fd00::1", 5)),
    ],
)
def test_master(text: str, expected: tuple[str, int]) -> None:
    assert split_master(text, 5) == expected


@pytest.mark.parametrize("text", ["a:0", "a:99999", "", "a:b"])
def test_bad_master(text: str) -> None:
    with pytest.raises(HostsError, match="HOST:PORT"):
        split_master(text, 5)
