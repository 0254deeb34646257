"""The doctor: each examination by itself, and the command from end to end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mccl import cli
from mccl.communicator.interfaces import Address, Interface
from mccl.doctor import EXAMINATIONS, Finding, Status, examine, network, selftest, software


def interface(mtu: int = 1500) -> Interface:
    return Interface("eth7", 7, (Address("10.0.0.1", 24),), mtu=mtu)


@pytest.mark.parametrize(
    ("speed", "mtu", "status", "said"),
    [
        (None, 1500, Status.OK, "speed unknown"),
        (-1, 1500, Status.OK, "speed unknown"),
        (1000, 1500, Status.OK, "1000 Mbit/s, MTU 1500, 10.0.0.1/24"),
        (100, 1500, Status.WARN, "100 Mbit/s"),
        (10000, 1500, Status.WARN, "10000 Mbit/s"),
        (10000, 9000, Status.OK, "10000 Mbit/s"),
    ],
)
def test_interfaces_by_speed_and_frame(
    speed: int | None, mtu: int, status: Status, said: str
) -> None:
    found = network.describe(interface(mtu), speed)
    assert found.status is status
    assert said in found.value


@pytest.mark.parametrize(
    ("line", "speed"),
    [
        ("\tmedia: autoselect (10Gbase-T <full-duplex>)", 10000),
        ("\tmedia: autoselect (1000baseT <full-duplex>)", 1000),
        ("\tmedia: autoselect (2500Base-T <full-duplex>)", 2500),
        ("\tmedia: autoselect <inactive>", None),
    ],
)
def test_speed_in_the_words_of_ifconfig(line: str, speed: int | None) -> None:
    assert network.parse_media(line) == speed


def proc(root: Path, automatic: int, asked: int) -> Path:
    for name in ("rmem", "wmem"):
        (root / "ipv4").mkdir(exist_ok=True)
        (root / "core").mkdir(exist_ok=True)
        (root / "ipv4" / f"tcp_{name}").write_text(f"4096\t131072\t{automatic}\n")
        (root / "core" / f"{name}_max").write_text(f"{asked}\n")
    return root


def test_small_buffers_get_the_command_to_enlarge_them(tmp_path: Path) -> None:
    large = list(network.linux_buffers(proc(tmp_path, 8 << 20, 4 << 20)))
    assert [found.status for found in large] == [Status.OK, Status.OK]
    small = list(network.linux_buffers(proc(tmp_path, 1 << 20, 4 << 20)))
    assert [found.status for found in small] == [Status.WARN, Status.WARN]
    assert "sysctl -w net.ipv4.tcp_rmem" in small[0].advice


def test_request_beyond_the_limit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCCL_SOCK_BUFSIZE", "8M")
    found = list(network.linux_buffers(proc(tmp_path, 8 << 20, 4 << 20)))
    assert sum("MCCL_SOCK_BUFSIZE=8388608" in item.value for item in found) == 2


def test_interface_that_does_not_exist_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCCL_SOCKET_IFNAME", "nosuch")
    found = network.chosen([interface()])
    assert found.status is Status.FAIL
    assert "nosuch" in found.value
    assert "eth7" in found.value


def test_settings_show_value_source_and_what_does_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MCCL_SPIN_US", "7")
    monkeypatch.setenv("MCCL_SPIN_UZ", "7")
    found = {item.name: item for item in software.settings()}
    assert found["spin_us"].value == "7, from MCCL_SPIN_US"
    assert found["MCCL_SPIN_UZ"].status is Status.WARN
    assert "MCCL_SPIN_US" in found["MCCL_SPIN_UZ"].value
    again = {item.name for item in software.settings()}
    assert "MCCL_SPIN_UZ" in again


def test_bad_setting_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCCL_ALGO", "butterfly")
    (found,) = software.settings()
    assert found.status is Status.FAIL
    assert "butterfly" in found.value


def test_plans_are_proven() -> None:
    (found,) = software.plans()
    assert found.status is Status.OK


def test_examination_that_breaks_becomes_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Iterator[Finding]:
        yield Finding("plans", "first", Status.OK, "fine")
        raise RuntimeError("no such device")

    monkeypatch.setitem(EXAMINATIONS, "plans", broken)
    first, second = examine(["plans"])
    assert first.status is Status.OK
    assert second.status is Status.FAIL
    assert "no such device" in second.value


def test_finding_that_is_not_fine_needs_advice() -> None:
    with pytest.raises(ValueError, match="needs advice"):
        Finding("s", "n", Status.WARN, "v")


def test_wrong_answer_names_the_element() -> None:
    with pytest.raises(ArithmeticError, match=r"element 1 is 5\.0, expected 2\.0"):
        selftest.expect(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 5.0]), "all_reduce")


def test_two_ranks_answer() -> None:
    found = {item.name: item for item in selftest.examine()}
    assert {item.status for item in found.values()} == {Status.OK}, found
    assert set(found) == {"answers", "latency", "bandwidth"}


def test_command_as_json_and_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def one(status: Status) -> None:
        found = Finding("plans", "p", status, "value", "" if status is Status.OK else "do this")
        for name in list(EXAMINATIONS):
            monkeypatch.delitem(EXAMINATIONS, name)
        monkeypatch.setitem(EXAMINATIONS, "plans", lambda: [found])

    one(Status.WARN)
    assert cli.main(["doctor"]) == 0
    assert "> do this" in capsys.readouterr().out
    one(Status.FAIL)
    assert cli.main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["status"] == "fail"


def test_list_of_settings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MCCL_SPIN_US", "7")
    assert cli.main(["doctor", "--settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:3] == ["MCCL_SPIN_US", "7", "MCCL_SPIN_US"] for line in lines)
