"""Which address pairs two hosts use, and what they must agree on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mccl.communicator.interfaces import Address
from mccl.communicator.records import PeerRecord, Rail, check_settings, shared_settings
from mccl.communicator.routes import choose_routes
from mccl.config import Config, TextFile
from mccl.errors import ConnectError, InternalError, MismatchError


def address(text: str) -> Address:
    ip, _, rest = text.partition("/")
    prefix, _, scope = rest.partition("%")
    return Address(ip, int(prefix), int(scope or 0))


def host(rank: int, machine: str, **rails: list[str]) -> PeerRecord:
    return PeerRecord(
        rank=rank,
        global_rank=rank,
        host=f"mac-{rank}",
        machine=machine,
        pid=100 + rank,
        device="cpu",
        rails=tuple(
            Rail(name, None, tuple((address(a), 4000 + rank) for a in addresses))
            for name, addresses in rails.items()
        ),
        settings=shared_settings(Config()),
    )


def pairs(mine: PeerRecord, theirs: PeerRecord) -> list[list[tuple[str, str]]]:
    return [[(r.local.ip, r.remote.ip) for r in rail] for rail in choose_routes(mine, theirs)]


def test_same_subnet_comes_first_then_routable() -> None:
    a = host(0, "a", en0=["10.0.0.1/24", "192.168.7.1/24"])
    b = host(1, "b", en0=["172.16.0.2/24", "192.168.7.2/24"])
    found = pairs(a, b)[0]
    assert found[0] == ("192.168.7.1", "192.168.7.2")
    assert ("10.0.0.1", "172.16.0.2") in found


def test_rails_pair_by_subnet_whatever_their_order() -> None:
    a = host(0, "a", eth0=["10.0.0.1/24"], eth1=["10.0.1.1/24"])
    b = host(1, "b", eth0=["10.0.1.2/24"], eth1=["10.0.0.2/24"])
    assert [rail[0] for rail in pairs(a, b)] == [("10.0.0.1", "10.0.0.2"), ("10.0.1.1", "10.0.1.2")]


def test_as_many_rails_as_both_have() -> None:
    a = host(0, "a", eth0=["10.0.0.1/24"], eth1=["10.0.1.1/24"])
    b = host(1, "b", eth0=["10.0.1.2/24"])
    assert pairs(a, b) == [[("10.0.1.1", "10.0.1.2")]]


def test_loopback_reaches_only_its_own_machine() -> None:
    a, b = host(0, "a", lo=["127.0.0.1/8"]), host(1, "a", lo=["127.0.0.1/8"])
    assert pairs(a, b) == [[("127.0.0.1", "127.0.0.1")]]
    with pytest.raises(ConnectError, match=r"rank 1 cannot be reached.*MASTER_ADDR") as info:
        choose_routes(a, replace(b, machine="b"))
    assert info.value.peer == 1


def test_families_do_not_mix() -> None:
    with pytest.raises(ConnectError):
        choose_routes(host(0, "a", e=["10.0.0.1/24"]), host(1, "b", e=["fd00::1/64"]))


def test_link_local_is_last_and_takes_our_scope() -> None:
    a = host(0, "a", en0=["fe80::1/64%4", "fd00::1/64"])
    b = host(1, "b", en0=["fe80::2/64%9", "fd00::2/64"])
    routes = choose_routes(a, b)[0]
    assert [r.remote.ip for r in routes] == ["fd00::2", "fe80::2"]
    assert routes[1].remote.scope == 4


def test_records_survive_the_store_and_junk_does_not() -> None:
    record = host(3, "m", en0=["10.0.0.1/24", "fe80::2/64%9"])
    assert PeerRecord.from_json(record.to_json()) == record
    for junk in (b"", b"{}", b"[1]", b"left", record.to_json().replace("10.0.0.1", "nowhere")):
        with pytest.raises(InternalError, match="same version"):
            PeerRecord.from_json(junk)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"checksum": True}, "MCCL_CHECKSUM"),
        ({"wire_dtype": "bfloat16"}, "MCCL_WIRE_DTYPE"),
        ({"algo": "ring"}, "MCCL_ALGO"),
        ({"small_msg_threshold": 1}, "MCCL_SMALL_MSG_THRESHOLD"),
        ({"groups": 4}, "MCCL_GROUPS"),
        ({"tuning": TextFile(Path("a.json"), "{}")}, "MCCL_TUNING"),
    ],
)
def test_settings_that_differ_are_named_with_both_sides(
    change: dict[str, object], name: str
) -> None:
    a, b = host(0, "a", e=["10.0.0.1/24"]), host(1, "b", e=["10.0.0.2/24"])
    check_settings(a, b)
    theirs = replace(b, settings=shared_settings(Config(**change)))  # type: ignore[arg-type]
    with pytest.raises(MismatchError) as info:
        check_settings(a, theirs)
    for part in (name, "rank 0 (mac-0)", "rank 1 (mac-1)"):
        assert part in str(info.value)


def test_another_protocol_asks_for_the_same_version() -> None:
    a, b = host(0, "a", e=["10.0.0.1/24"]), host(1, "b", e=["10.0.0.2/24"])
    with pytest.raises(MismatchError, match="same version"):
        check_settings(a, replace(b, settings={**b.settings, "protocol": "9.9"}))
