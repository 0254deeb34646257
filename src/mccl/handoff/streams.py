"""What a GPU with streams does for the handoff, and how CUDA does it.

``GpuStreams`` is the narrow seam of ``staged_streams.py``: tests run the same lease logic over a
stand-in with threads for streams. A *stream* and an *event* are opaque to the caller.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_uint, c_uint64, c_void_p
from typing import Any, Protocol

import torch

from mccl.errors import InternalError, UsageError

_GEQ = 0  # CU_STREAM_WAIT_VALUE_GEQ: wait until (int64)(*address - value) >= 0
_WRITE_DEFAULT = 0  # CU_STREAM_WRITE_VALUE_DEFAULT: earlier writes are visible before the value


class GpuStreams(Protocol):
    """Streams, events and stream memory operations of one device."""

    device_type: str

    def current(self) -> Any:
        """The stream that the calling thread issues its kernels on."""

    def create_stream(self) -> Any:
        """A stream of our own."""

    def record(self, stream: Any) -> Any:
        """An event behind everything issued on ``stream`` so far."""

    def wait_event(self, stream: Any, event: Any) -> None:
        """What ``stream`` does next runs after ``event``."""

    def reached(self, event: Any) -> bool:
        """Whether the device has passed the event. Never blocks."""

    def copy(self, stream: Any, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy between device and pinned memory on ``stream``; never blocks the host.

        The device tensor's memory is not reused before the copy is done.
        """

    def write_value(self, stream: Any, address: int, value: int) -> None:
        """Store a 64-bit word in pinned memory when ``stream`` gets there."""

    def wait_value(self, stream: Any, address: int, value: int) -> None:
        """What ``stream`` does next runs once the 64-bit word is at least ``value``."""

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Zeroed page-locked host memory, uint8, that streams can reach."""

    def completed_future(self, stream: Any, value: Any) -> torch.futures.Future[Any]:
        """A completed future; whoever waits on it has its stream wait for ``stream``."""

    def synchronize(self, stream: Any) -> None:
        """Block the host until ``stream`` is idle."""


class CudaStreams:
    """``GpuStreams`` of a CUDA device, by torch and two functions of the driver.

    Raises ``UsageError`` when the driver or device has no 64-bit stream memory operations and
    ``tickets`` are wanted.
    """

    device_type = "cuda"

    def __init__(self, device: torch.device, *, tickets: bool = True) -> None:
        self.device = device
        if tickets:
            self._driver = _load_driver()
            self._probe()

    def _probe(self) -> None:
        word = self.pinned(8)
        stream = self.create_stream()
        try:
            self.write_value(stream, word.data_ptr(), 1)
            self.wait_value(stream, word.data_ptr(), 1)
        except InternalError as error:
            raise UsageError(
                f"{torch.cuda.get_device_name(self.device)} cannot run MCCL's tickets: {error}. "
                "Stream memory operations need a driver for CUDA 11.7 or newer; set "
                "MCCL_EVENT_SYNC=0 to synchronise the stream instead (slow)"
            ) from error
        self.synchronize(stream)

    def current(self) -> torch.cuda.Stream:
        """See ``GpuStreams``."""
        return torch.cuda.current_stream(self.device)

    def create_stream(self) -> torch.cuda.Stream:
        """See ``GpuStreams``. High priority: its copies go before the model's own."""
        return torch.cuda.Stream(self.device, priority=-1)  # type: ignore[no-untyped-call]

    def record(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """See ``GpuStreams``."""
        event: torch.cuda.Event = stream.record_event()
        return event

    def wait_event(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """See ``GpuStreams``."""
        stream.wait_event(event)

    def reached(self, event: torch.cuda.Event) -> bool:
        """See ``GpuStreams``."""
        return bool(event.query())  # type: ignore[no-untyped-call]

    def copy(self, stream: torch.cuda.Stream, target: torch.Tensor, source: torch.Tensor) -> None:
        """See ``GpuStreams``."""
        with torch.cuda.stream(stream), torch.no_grad():
            target.copy_(source, non_blocking=True)
        for tensor in (target, source):
            if tensor.is_cuda:
                tensor.record_stream(stream)

    def write_value(self, stream: torch.cuda.Stream, address: int, value: int) -> None:
        """See ``GpuStreams``."""
        self._call("cuStreamWriteValue64_v2", stream, address, value, _WRITE_DEFAULT)

    def wait_value(self, stream: torch.cuda.Stream, address: int, value: int) -> None:
        """See ``GpuStreams``."""
        self._call("cuStreamWaitValue64_v2", stream, address, value, _GEQ)

    def pinned(self, nbytes: int) -> torch.Tensor:
        """See ``GpuStreams``."""
        with torch.cuda.device(self.device):
            return torch.zeros(nbytes, dtype=torch.uint8, device="cpu", pin_memory=True)

    def completed_future(self, stream: torch.cuda.Stream, value: Any) -> torch.futures.Future[Any]:
        """See ``GpuStreams``."""
        future: torch.futures.Future[Any] = torch.futures.Future(devices=[self.device])
        with torch.cuda.stream(stream):
            future.set_result(value)
        return future

    def synchronize(self, stream: torch.cuda.Stream) -> None:
        """See ``GpuStreams``."""
        stream.synchronize()

    def _call(
        self, name: str, stream: torch.cuda.Stream, address: int, value: int, flags: int
    ) -> None:
        with torch.cuda.device(self.device):
            status = getattr(self._driver, name)(stream.cuda_stream, address, value, flags)
        if status != 0:
            text = c_char_p()
            self._driver.cuGetErrorString(status, byref(text))
            why = (text.value or b"unknown error").decode(errors="replace")
            raise InternalError(f"{name} failed with error {status}: {why}")


def _load_driver() -> ctypes.CDLL:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        for name in ("cuStreamWriteValue64_v2", "cuStreamWaitValue64_v2"):
            function = getattr(driver, name)
            function.argtypes = [c_void_p, c_uint64, c_uint64, c_uint]
            function.restype = ctypes.c_int
    except (OSError, AttributeError) as error:
        raise UsageError(
            f"collectives of CUDA tensors need the NVIDIA driver's stream memory operations "
            f"(libcuda.so.1 of CUDA 11.7 or newer): {error}"
        ) from error
    return driver
