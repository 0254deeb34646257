"""What ranks announce about their networks, from which groups are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch.distributed as dist

from mccl.communicator import Communicator
from mccl.communicator.interfaces import Address
from mccl.communicator.records import PeerRecord, Rail, shared_settings
from mccl.config import Config

RECORD = PeerRecord(
    rank=0,
    global_rank=0,
    host="mac-0",
    machine="m",
    pid=1,
    device="cpu",
    rails=(),
    settings=shared_settings(Config()),
)


@pytest.mark.parametrize(
    ("addresses", "subnet"),
    [
        ([("10.0.3.7", 24)], "10.0.3.0/24"),
        ([("127.0.0.1", 8)], None),
        ([("169.254.1.1", 16), ("10.1.2.3", 16)], "10.1.0.0/16"),
        ([("fe80::1", 64), ("fd00:1::5", 64)], "fd00:1::/64"),
        ([], None),
    ],
)
def test_the_first_address_that_routes(
    addresses: list[tuple[str, int]], subnet: str | None
) -> None:
    rail = Rail("en0", None, tuple((Address(ip, prefix), 4000) for ip, prefix in addresses))
    assert replace(RECORD, rails=(rail,)).subnet == subnet


def test_every_rank_sees_the_same_list(
    make: Callable[..., Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = dist.PrefixStore("default_pg", dist.HashStore())
    comms = [make(store, rank, 3) for rank in range(3)]
    assert [comm.subnets() for comm in comms] == [[None] * 3] * 3
    monkeypatch.setattr(PeerRecord, "subnet", property(lambda self: f"net {self.rank % 2}"))
    assert [comm.subnets() for comm in comms] == [["net 0", "net 1", "net 0"]] * 3
