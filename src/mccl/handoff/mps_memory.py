"""Where the bytes of an MPS tensor are.

The one file that knows PyTorch's MPS storage. ``MetalHandoff`` sees only ``MpsMemory``, so
the same code runs over the stand-in's memory in tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from mccl.errors import UsageError
from mccl.handoff.base import is_plain, plain_copy
from mccl.handoff.metal_bridge import MetalBridge

_STORAGE_MODE_SHARED = 0  # MTLStorageModeShared
_OBJECT_POINTERS_UNTIL = (2, 15)
"""Newest torch seen whose MPS ``storage.data_ptr()`` is the ``id<MTLBuffer>`` itself."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a contiguous tensor's first element is."""

    address: int | None
    """Host address; None when the storage is private to the GPU."""
    buffer: int | None
    """The ``id<MTLBuffer>``; None when PyTorch no longer shows it."""
    offset: int
    """Bytes from the start of ``buffer``."""
    keep: object = None
    """Must live as long as the address is used."""


class MpsMemory(Protocol):
    """What the handoff needs to know about, and have done to, MPS tensors."""

    device_type: str

    def is_plain(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's values are its memory, in order."""

    def locate(self, tensor: torch.Tensor) -> Place:
        """Where a plain tensor is."""

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """A plain copy, in stream order."""

    def unpack(self, tensor: torch.Tensor, packed: torch.Tensor) -> None:
        """Copy a plain tensor's values back, in stream order."""

    def synchronize(self) -> None:
        """Wait on the host until the stream has run everything."""


def loaded_torch_library() -> str:
    """Path of the libtorch that holds the ``torch::mps`` functions."""
    return str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.dylib")


class TorchMpsMemory:
    """The real thing."""

    device_type = "mps"

    def __init__(self, bridge: MetalBridge) -> None:
        self._bridge = bridge
        self._alias: Any = getattr(torch.mps, "_host_alias_storage", None)
        version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
        self._object_pointers = version <= _OBJECT_POINTERS_UNTIL
        if self._alias is None and not self._object_pointers:
            raise UsageError(
                f"torch {torch.__version__} offers no way known to MCCL to reach MPS memory from "
                "the host (torch.mps._host_alias_storage is gone): use an older torch or a newer "
                "MCCL"
            )

    def is_plain(self, tensor: torch.Tensor) -> bool:
        """See ``MpsMemory``."""
        return is_plain(tensor)

    def locate(self, tensor: torch.Tensor) -> Place:
        """See ``MpsMemory``. The host alias is preferred: it is PyTorch's own word."""
        storage = tensor.untyped_storage()
        offset = int(tensor.storage_offset()) * tensor.element_size()
        data = storage.data_ptr()
        if self._alias is not None:
            alias = self._host_alias(storage)
            base = None if alias is None else alias.data_ptr()
            buffer = data if data != base and self._object_pointers else None
            address = None if base is None else base + offset
            return Place(address, buffer, offset, alias)
        described = self._bridge.describe(data)
        if described.storage_mode != _STORAGE_MODE_SHARED or not described.contents:
            return Place(None, data, offset)
        return Place(described.contents + offset, data, offset)

    def _host_alias(self, storage: torch.UntypedStorage) -> Any:
        try:
            return self._alias(storage)
        except RuntimeError:
            # Private storage. Anything else wrong with the storage fails again, and loudly,
            # when the staged path asks Metal for it.
            return None

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """See ``MpsMemory``."""
        with torch.no_grad():
            return plain_copy(tensor)

    def unpack(self, tensor: torch.Tensor, packed: torch.Tensor) -> None:
        """See ``MpsMemory``."""
        with torch.no_grad():
            tensor.copy_(packed)

    def synchronize(self) -> None:
        """See ``MpsMemory``."""
        torch.mps.synchronize()
