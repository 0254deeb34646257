"""Finding an MPS tensor's bytes: by PyTorch's alias, by the buffer object, or not at all."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from mccl.errors import UsageError
from mccl.handoff.metal_bridge import BufferDescription, MetalBridge
from mccl.handoff.mps_memory import TorchMpsMemory

CONTENTS = 0x7000_0000


class FakeBridge:
    """Describes every buffer as one of the given storage mode."""

    def __init__(self, mode: int) -> None:
        self._mode = mode
        self.asked: list[int] = []

    def describe(self, buffer: int) -> BufferDescription:
        self.asked.append(buffer)
        return BufferDescription(CONTENTS if self._mode == 0 else None, 4096, self._mode)


def memory(
    monkeypatch: pytest.MonkeyPatch, *, alias: Any = None, version: str = "2.13.0", mode: int = 0
) -> TorchMpsMemory:
    monkeypatch.setattr(torch.mps, "_host_alias_storage", alias, raising=False)
    monkeypatch.setattr(torch, "__version__", version)
    return TorchMpsMemory(cast("MetalBridge", FakeBridge(mode)))


def test_the_alias_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    alias = SimpleNamespace(data_ptr=lambda: CONTENTS)
    tensor = torch.zeros(16)[4:]
    place = memory(monkeypatch, alias=lambda storage: alias).locate(tensor)
    assert place.address == CONTENTS + 16
    assert place.buffer == tensor.untyped_storage().data_ptr()
    assert place.offset == 16
    assert place.keep is alias


def test_private_storage_has_a_buffer_but_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(storage: Any) -> Any:
        raise RuntimeError("storage is private")

    tensor = torch.zeros(4)
    place = memory(monkeypatch, alias=refuse).locate(tensor)
    assert place.address is None
    assert place.buffer == tensor.untyped_storage().data_ptr()


def test_a_data_pointer_that_is_an_address_is_not_taken_for_a_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensor = torch.zeros(4)
    place = memory(monkeypatch, alias=lambda storage: storage).locate(tensor)
    assert place.address == tensor.data_ptr()
    assert place.buffer is None


@pytest.mark.parametrize(("mode", "address"), [(0, CONTENTS + 8), (2, None)])
def test_without_alias_the_buffer_is_asked(
    monkeypatch: pytest.MonkeyPatch, mode: int, address: int | None
) -> None:
    tensor = torch.zeros(4)[2:]
    place = memory(monkeypatch, mode=mode).locate(tensor)
    assert place.address == address
    assert place.buffer == tensor.untyped_storage().data_ptr()


def test_an_unknown_torch_without_alias_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"torch 2\.16\.0 offers no way"):
        memory(monkeypatch, version="2.16.0")
