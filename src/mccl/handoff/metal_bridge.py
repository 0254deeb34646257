"""ctypes door to ``native/include/mccl_metal.h``."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_uint64, c_void_p

from mccl.engine import Ticket
from mccl.errors import InternalError, UsageError

_OK = 0


class BufferDescription(Structure):
    """``mccl_metal_buffer``."""

    _fields_ = (("contents", c_void_p), ("length", c_uint64), ("storage_mode", c_uint64))

    contents: int | None
    length: int
    storage_mode: int


def declare(library: ctypes.CDLL) -> None:
    """Give the functions of ``mccl_metal.h`` their types."""
    signatures = {
        "open": (c_void_p, [c_char_p]),
        "close": (None, [c_void_p]),
        "error": (c_char_p, []),
        "device_name": (c_char_p, [c_void_p]),
        "event_create": (c_void_p, [c_void_p]),
        "event_destroy": (None, [c_void_p]),
        "event_ticket": (None, [c_void_p, POINTER(Ticket)]),
        "event_read": (c_uint64, [c_void_p]),
        "event_raise": (None, [c_void_p, c_uint64]),
        "encode_signal": (c_int, [c_void_p, c_void_p, c_uint64]),
        "encode_wait": (c_int, [c_void_p, c_void_p, c_uint64]),
        "encode_copy": (c_int, [c_void_p, c_void_p, c_uint64, c_void_p, c_uint64, c_uint64]),
        "describe": (c_int, [c_void_p, c_void_p, POINTER(BufferDescription)]),
        "buffer_create": (c_void_p, [c_void_p, c_uint64]),
        "buffer_release": (None, [c_void_p, c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"mccl_metal_{name}")
        function.restype = result
        function.argtypes = arguments


class SharedEvent:
    """One MTLSharedEvent and the ticket the engine uses it through."""

    def __init__(self, handle: int, ticket: Ticket) -> None:
        self.handle = handle
        self.ticket = ticket


class MetalBridge:
    """PyTorch's MPS stream. The ``encode_*`` calls follow O3; the rest may come from any thread.

    Raises ``UsageError`` when this machine or this libtorch has no Metal to speak to.
    """

    def __init__(self, library: ctypes.CDLL, torch_library: str | None) -> None:
        declare(library)
        self._library = library
        path = None if torch_library is None else torch_library.encode()
        self._handle: int | None = library.mccl_metal_open(path)
        if not self._handle:
            raise UsageError(
                f"collectives of MPS tensors need Metal and torch ≥ 2.12 for macOS: {self._why()}; "
                "move the tensors to the CPU, or install a torch wheel that exports torch/mps.h"
            )

    def _why(self) -> str:
        return str(self._library.mccl_metal_error().decode(errors="replace"))

    def _check(self, status: int, doing: str) -> None:
        if status != _OK:
            raise InternalError(f"Metal: {doing} failed: {self._why()}")

    @property
    def device_name(self) -> str:
        """The GPU's name."""
        return str(self._library.mccl_metal_device_name(self._handle).decode(errors="replace"))

    def create_event(self) -> SharedEvent:
        """A new event at value 0."""
        handle = self._library.mccl_metal_event_create(self._handle)
        if not handle:
            raise InternalError(f"Metal: making a shared event failed: {self._why()}")
        ticket = Ticket()
        self._library.mccl_metal_event_ticket(handle, byref(ticket))
        return SharedEvent(handle, ticket)

    def destroy_event(self, event: SharedEvent) -> None:
        """Release an event that no command or operation names any more."""
        self._library.mccl_metal_event_destroy(event.handle)

    def read_event(self, event: SharedEvent) -> int:
        """The event's value now."""
        return int(self._library.mccl_metal_event_read(event.handle))

    def raise_event(self, event: SharedEvent, value: int) -> None:
        """Signal the event from the CPU; never lowers it."""
        self._library.mccl_metal_event_raise(event.handle, value)

    def encode_signal(self, event: SharedEvent, value: int) -> None:
        """O1: signal when all work encoded so far is complete; commits."""
        status = self._library.mccl_metal_encode_signal(self._handle, event.handle, value)
        self._check(status, "signalling an event")

    def encode_wait(self, event: SharedEvent, value: int) -> None:
        """O2: work encoded from now on waits for the event."""
        status = self._library.mccl_metal_encode_wait(self._handle, event.handle, value)
        self._check(status, "waiting for an event")

    def encode_copy(
        self, source: int, source_offset: int, target: int, target_offset: int, nbytes: int
    ) -> None:
        """Copy bytes between two buffers, in stream order."""
        status = self._library.mccl_metal_encode_copy(
            self._handle, source, source_offset, target, target_offset, nbytes
        )
        self._check(status, "copying between buffers")

    def describe(self, buffer: int) -> BufferDescription:
        """Contents, length and storage mode of an ``id<MTLBuffer>``."""
        out = BufferDescription()
        status = self._library.mccl_metal_describe(self._handle, buffer, byref(out))
        self._check(status, "describing a buffer")
        return out

    def create_buffer(self, nbytes: int) -> int:
        """A new shared buffer."""
        buffer = self._library.mccl_metal_buffer_create(self._handle, nbytes)
        if not buffer:
            raise InternalError(f"Metal: {self._why()}")
        return int(buffer)

    def release_buffer(self, buffer: int) -> None:
        """Give a buffer of ``create_buffer`` back."""
        self._library.mccl_metal_buffer_release(self._handle, buffer)

    def close(self) -> None:
        """Let go of the device."""
        if self._handle:
            self._library.mccl_metal_close(self._handle)
            self._handle = None
