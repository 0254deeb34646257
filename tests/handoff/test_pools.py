"""Lanes and staging buffers: nobody gets what another still uses."""

from __future__ import annotations

import itertools

import pytest
import torch

from mccl.config import Config
from mccl.errors import UsageError
from mccl.handoff import HostHandoff, for_device
from mccl.handoff.lanes import Lanes
from mccl.handoff.staging import StagingPool


def test_lanes_in_use_are_distinct_and_values_grow() -> None:
    lanes = Lanes(itertools.count().__next__)
    first, second = lanes.take(), lanes.take()
    assert first.event != second.event
    used = first.event, first.value
    lanes.give_back(first)
    again = lanes.take()
    assert again.event == used[0]
    assert again.value == used[1] + 1
    assert lanes.in_use() == 2


def test_staging_is_reused_by_size_once_usable() -> None:
    busy: set[int] = set()
    pool = StagingPool(bytearray, usable=lambda memory: id(memory) not in busy)
    first = pool.take(5000)
    assert len(first.memory) == 8192
    busy.add(id(first.memory))
    pool.give_back(first)
    assert pool.take(8192).memory is not first.memory
    busy.clear()
    assert pool.take(4097).memory is first.memory
    assert len(pool.take(1).memory) == 4096
    assert len(pool.drain()) == 3


def test_devices_share_one_handoff_and_unknown_ones_are_refused() -> None:
    config = Config()
    first = for_device(torch.device("cpu"), config)
    assert isinstance(first, HostHandoff)
    assert for_device(torch.device("cpu"), config) is first
    with pytest.raises(UsageError, match="cpu, cuda and mps"):
        for_device(torch.device("meta"), config)


def test_a_machine_without_the_device_says_so() -> None:
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(UsageError, match="torch with CUDA"):
        for_device(torch.device("cuda", 0), Config())
