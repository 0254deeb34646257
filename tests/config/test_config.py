"""Settings: what each name accepts, where a value came from, what is said about bad ones."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path

import pytest

from mccl import _values
from mccl import config as config_module
from mccl.config import Config, ConfigError, InterfaceRule, Launch
from mccl.plans.choose import ALGORITHMS


@pytest.fixture(autouse=True)
def _nothing_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "_reported", set())


@pytest.mark.parametrize(
    ("env", "text", "field", "value"),
    [
        ("MCCL_SOCKET_IFNAME", "en0", "socket_ifname", InterfaceRule(("en0",))),
        ("MCCL_SOCKET_IFNAME", "=a,b", "socket_ifname", InterfaceRule(("a", "b"), exact=True)),
        ("MCCL_SOCKET_IFNAME", "^lo", "socket_ifname", InterfaceRule(("lo",), exclude=True)),
        ("GLOO_SOCKET_IFNAME", "en0", "socket_ifname", InterfaceRule(("en0",), exact=True)),
        ("MCCL_SOCK_BUFSIZE", "4M", "sock_bufsize", 4 << 20),
        ("MCCL_SOCK_BUFSIZE", "0", "sock_bufsize", None),
        ("MCCL_SMALL_MSG_THRESHOLD", "64KiB", "small_msg_threshold", 64 << 10),
        ("MCCL_ALGO", "Recursive-Doubling", "algo", "recursive_doubling"),
        ("MCCL_WIRE_DTYPE", "bf16", "wire_dtype", "bfloat16"),
        ("MCCL_WIRE_DTYPE", "none", "wire_dtype", None),
        ("MCCL_PEER_TIMEOUT", "2.5", "peer_timeout", 2.5),
        ("MCCL_CONNECT_TIMEOUT_MS", "1500", "connect_timeout", 1.5),
        ("MCCL_PORT_BASE", "20100", "port_base", 20100),
        ("MCCL_CHECKSUM", "yes", "checksum", True),
        ("MCCL_TRANSPORT_CRC", "1", "checksum", True),
        ("MCCL_DEMUX_PARK_BYTES", "1M", "park_bytes", 1 << 20),
        ("MCCL_EVENT_SYNC", "0", "event_sync", False),
        ("MCCL_DEBUG", "1", "log_level", "DEBUG"),
        ("MCCL_LOG_LEVEL", "WARN", "log_level", "WARNING"),
        ("MCCL_GROUPS", "0-2;3,5", "groups", ((0, 1, 2), (3, 5))),
        ("MCCL_GROUPS", "12", "groups", 12),
        ("MCCL_METRICS_PORT", "0", "metrics_port", 0),
    ],
)
def test_environment_sets_field(env: str, text: str, field: str, value: object) -> None:
    config = Config.from_env({env: text})
    assert getattr(config, field) == value
    assert config.sources[field] == env


@pytest.mark.parametrize(
    ("env", "text", "accepted"),
    [
        ("MCCL_SOCKET_IFNAME", "^", "interface names"),
        ("MCCL_SOCKET_IFNAME", "a,,b", "interface names"),
        ("MCCL_SOCK_BUFSIZE", "4 million", "a number of bytes"),
        ("MCCL_SOCK_BUFSIZE", "-1", "a number of bytes"),
        ("MCCL_ALGO", "butterfly", "auto, binomial"),
        ("MCCL_WIRE_DTYPE", "int8", "bfloat16"),
        ("MCCL_PEER_TIMEOUT", "0", "greater than 0"),
        ("MCCL_PEER_TIMEOUT", "nan", "greater than 0"),
        ("MCCL_CONNECT_TIMEOUT_MS", "1.5", "whole number of milliseconds"),
        ("MCCL_PORT_BASE", "70000", "0 to 65535"),
        ("MCCL_NSOCKS", "0", "1 to 16"),
        ("MCCL_CHECKSUM", "maybe", "1, true"),
        ("MCCL_LOG_LEVEL", "loud", "error, warn"),
        ("MCCL_GROUPS", "0-3;3-5", "every rank stands once"),
        ("MCCL_GROUPS", "1", "ranks like"),
        ("MCCL_SECRET_FILE", "/nonexistent/secret", "a file that exists"),
    ],
)
def test_bad_value_names_itself_and_what_is_accepted(env: str, text: str, accepted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_env({env: text})
    message = str(caught.value)
    assert env in message
    assert text in message
    assert accepted in message


def test_bad_secret_is_not_shown() -> None:
    with pytest.raises(ConfigError, match="at least 8") as caught:
        Config.from_env({"MCCL_SECRET": "hunter2"})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "interface", "allowed"),
    [
        ("en", "en0", True),
        ("=en", "en0", False),
        ("=en0", "en0", True),
        ("^docker,lo", "docker0", False),
        ("^docker,lo", "eth0", True),
        ("^=lo", "lo0", True),
        ("^=lo", "lo", False),
    ],
)
def test_interface_grammar(rule: str, interface: str, allowed: bool) -> None:
    found = Config.from_env({"MCCL_SOCKET_IFNAME": rule}).socket_ifname
    assert found is not None
    assert found.matches(interface) is allowed
    assert str(found) == rule


def test_precedence_is_argument_then_own_name_then_alias_then_default() -> None:
    both = {"MCCL_SOCKET_IFNAME": "a", "GLOO_SOCKET_IFNAME": "b"}
    assert Config.from_env(both).socket_ifname == InterfaceRule(("a",))
    argument = Config.from_env({"MCCL_SPIN_US": "7"}, spin_us=3)
    assert (argument.spin_us, argument.sources["spin_us"]) == (3, "argument")
    assert Config.from_env({"MCCL_SPIN_US": " "}) == Config()


def test_secret_from_file_and_both_at_once(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("correct horse\n")
    assert Config.from_env({"MCCL_SECRET_FILE": str(file)}).shared_secret() == b"correct horse"
    assert Config().shared_secret() is None
    with pytest.raises(ConfigError, match="both set"):
        Config.from_env({"MCCL_SECRET_FILE": str(file), "MCCL_SECRET": "battery staple"})
    file.write_text("short")
    with pytest.raises(ConfigError, match="MCCL_SECRET_FILE"):
        Config.from_env({"MCCL_SECRET_FILE": str(file)}).shared_secret()


def test_secret_stays_out_of_repr_and_description() -> None:
    config = Config.from_env({"MCCL_SECRET": "battery staple"})
    rows = {row.name: row for row in config.describe()}
    assert "battery" not in repr(config)
    assert rows["secret"].value == "(hidden)"


def test_describe_has_a_row_for_every_setting_with_its_source() -> None:
    rows = list(Config.from_env({"MCCL_CONNECT_TIMEOUT_MS": "1500"}).describe())
    fields = {item.name for item in dataclasses.fields(Config)} - {"sources"}
    assert {row.name for row in rows} == fields
    assert all(row.doc and row.env and row.section for row in rows)
    timeout = next(row for row in rows if row.name == "connect_timeout")
    assert (timeout.value, timeout.default) == ("1500", "30000")
    assert timeout.source == "MCCL_CONNECT_TIMEOUT_MS"


def test_unknown_name_is_warned_about_once_with_the_nearest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "mccl.config"):
        Config.from_env({"MCCL_SOCKET_IFNAM": "en0"})
        Config.from_env({"MCCL_SOCKET_IFNAM": "en0"})
    assert [record.getMessage() for record in caplog.records] == [
        "MCCL_SOCKET_IFNAM is set but is not a setting of mccl. Did you mean MCCL_SOCKET_IFNAME?"
    ]


def test_name_without_effect_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "mccl.config"):
        Config.from_env({"MCCL_COMPRESSION": "fp16"})
    assert "no effect" in caplog.text
    assert "MCCL_WIRE_DTYPE" in caplog.text


def test_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCCL_NSOCKS", "3")
    assert Config.from_env().nsocks == 3
    assert Config.from_env(dict(os.environ)).nsocks == 3


def test_launch_reads_what_torchrun_sets() -> None:
    launch = Launch.from_env({"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "LOCAL_RANK": ""})
    assert launch == Launch(rank=3, world_size=8, master_addr="a")
    with pytest.raises(ConfigError, match="RANK='x'"):
        Launch.from_env({"RANK": "x"})


def test_algorithms_are_those_that_the_plans_offer() -> None:
    assert set(_values.ALGORITHMS) == set(ALGORITHMS)
