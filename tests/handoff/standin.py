"""The stand-in Metal from Python: building it, kernels on its stream, and memory for tensors.

``StandinMemory`` is the test's ``MpsMemory``. Its tensors are CPU tensors over the bytes of
stand-in MTLBuffers, kept in a caching pool like PyTorch's: the buffer of a dead tensor goes
to the next one at once, which is what makes an early release visible.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import os
import shutil
import subprocess
import weakref
from collections import defaultdict
from ctypes import POINTER, byref, c_float, c_int, c_int64, c_uint32, c_uint64, c_void_p
from pathlib import Path

import torch

from mccl.handoff.base import is_plain
from mccl.handoff.metal_bridge import MetalBridge
from mccl.handoff.mps_memory import Place

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "native" / "standin"
ITEM = 4  # float32


def build(flags: tuple[str, ...] = ()) -> Path:
    """Compile the stand-in unless a library of these very sources is there. Returns its path."""
    files = sorted(SOURCES.glob("*.cc")) + sorted(SOURCES.glob("*.h"))
    digest = hashlib.sha256(repr(flags).encode())
    for file in files:
        digest.update(file.read_bytes())
    target = ROOT / "build" / "standin" / f"libstandin-{digest.hexdigest()[:16]}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        fresh = target.with_suffix(f".{os.getpid()}")
        compiler = shutil.which("c++") or "c++"
        command = [compiler, "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden"]
        command += ["-Wall", "-Wextra", "-Werror", "-pthread", *flags, "-o", str(fresh)]
        subprocess.run([*command, *(str(f) for f in files if f.suffix == ".cc")], check=True)
        fresh.replace(target)
    return target


class Counts(ctypes.Structure):
    """``standin_counts``."""

    _fields_ = (
        *((name, c_uint64) for name in ("mismatches", "checked", "commits", "signals", "waits")),
        ("copies", c_uint64),
        ("waits_that_blocked", c_uint64),
        *((name, c_int64) for name in ("live_events", "live_buffers", "live_commands")),
    )


class Standin:
    """The driver's seat. Loads the library so that the Metal bridge finds its symbols."""

    def __init__(self, path: Path) -> None:
        self.lib = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        ramp = [c_void_p, c_uint64, c_uint64, c_float, c_float]
        dims = POINTER(c_int64)
        pack = [c_void_p, c_uint64, dims, dims, c_uint64, c_void_p, c_uint64, c_int]
        for name, result, arguments in (
            ("reset", None, [c_uint64, c_uint32]),
            ("own_stream", None, [c_int]),
            ("synchronize", None, []),
            ("buffer_create", c_void_p, [c_uint64, c_int]),
            ("buffer_release", None, [c_void_p]),
            ("buffer_bytes", c_void_p, [c_void_p]),
            ("ramp", None, ramp),
            ("affine", None, ramp),
            ("check", None, ramp),
            ("pack", None, pack),
            ("get_counts", None, [POINTER(Counts)]),
        ):
            function = getattr(self.lib, f"standin_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, f"c_{name}", function)

    def counts(self) -> Counts:
        out = Counts()
        self.c_get_counts(byref(out))
        return out


class StandinMemory:
    """Tensors over stand-in buffers; the ``MpsMemory`` of the tests."""

    device_type = "cpu"

    def __init__(self, standin: Standin, bridge: MetalBridge) -> None:
        self.standin = standin
        self._bridge = bridge
        self._buffers: dict[int, tuple[int, bool]] = {}
        self._free: dict[tuple[int, bool], list[int]] = defaultdict(list)
        self._types: dict[int, type] = {}
        self.reused = 0

    def empty(self, *shape: int, private: bool = False) -> torch.Tensor:
        """A float32 tensor; its memory may have belonged to a tensor that just died."""
        nbytes = math.prod(shape) * ITEM
        free = self._free[nbytes, private]
        if free:
            buffer = free.pop()
            self.reused += 1
        else:
            buffer = self.standin.c_buffer_create(nbytes, int(private))
        address = self.standin.c_buffer_bytes(buffer)
        self._buffers[address] = (buffer, private)
        kind = self._types.get(nbytes)
        if kind is None:
            name = f"Bytes{nbytes}"
            kind = type(name, (ctypes.Array,), {"_type_": ctypes.c_char, "_length_": nbytes})
            self._types[nbytes] = kind
        raw = kind.from_address(address)
        weakref.finalize(raw, free.append, buffer)
        return torch.frombuffer(raw, dtype=torch.float32).view(*shape)

    def buffer(self, tensor: torch.Tensor) -> int:
        return self._buffers[tensor.untyped_storage().data_ptr()][0]

    # what MetalHandoff asks

    def is_plain(self, tensor: torch.Tensor) -> bool:
        return is_plain(tensor)

    def locate(self, tensor: torch.Tensor) -> Place:
        buffer, private = self._buffers[tensor.untyped_storage().data_ptr()]
        offset = tensor.storage_offset() * ITEM
        contents = self._bridge.describe(buffer).contents
        assert (contents is None) == private
        return Place(None if contents is None else contents + offset, buffer, offset)

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        packed = self.empty(*tensor.shape)
        self._strided(tensor, packed, unpack=False)
        return packed

    def unpack(self, tensor: torch.Tensor, packed: torch.Tensor) -> None:
        self._strided(tensor, packed, unpack=True)

    def _strided(self, view: torch.Tensor, packed: torch.Tensor, *, unpack: bool) -> None:
        pad = 4 - view.dim()
        sizes = (c_int64 * 4)(*([1] * pad), *view.shape)
        strides = (c_int64 * 4)(*([0] * pad), *view.stride())
        self.standin.c_pack(
            self.buffer(view), view.storage_offset() * ITEM, sizes, strides, ITEM,
            self.buffer(packed), packed.storage_offset() * ITEM, int(unpack),
        )  # fmt: skip

    def synchronize(self) -> None:
        self.standin.c_synchronize()

    # kernels, on contiguous tensors

    def ramp(self, tensor: torch.Tensor, base: float, step: float) -> None:
        self.standin.c_ramp(*self._span(tensor), base, step)

    def affine(self, tensor: torch.Tensor, a: float, b: float) -> None:
        self.standin.c_affine(*self._span(tensor), a, b)

    def check(self, tensor: torch.Tensor, base: float, step: float) -> None:
        self.standin.c_check(*self._span(tensor), base, step)

    def _span(self, tensor: torch.Tensor) -> tuple[int, int, int]:
        assert tensor.is_contiguous()
        return self.buffer(tensor), tensor.storage_offset(), tensor.numel()

    def release(self) -> None:
        """Give the free buffers back."""
        for free in self._free.values():
            while free:
                self.standin.c_buffer_release(free.pop())
