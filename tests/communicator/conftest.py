"""What the communicator's tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from mccl.communicator import Communicator
from mccl.config import Config

from .fakes import FakeNative, loopback


@pytest.fixture(name="loopback")
def _loopback() -> Callable[..., Config]:
    return loopback


Make = Callable[..., Communicator]


@pytest.fixture
def make() -> Iterator[Make]:
    """Builds communicators with a FakeNative and closes them at the end."""
    made: list[Communicator] = []

    def build(store: dist.Store, rank: int, size: int, name: str = "g", **kw: Any) -> Communicator:
        kw.setdefault("config", loopback())
        comm = Communicator(
            store, rank, size, group_name=name, make_native=kw.pop("native", FakeNative), **kw
        )
        made.append(comm)
        return comm

    yield build
    for comm in made:
        comm.close()
