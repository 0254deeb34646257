"""Streams made of threads, for running the CUDA lease's logic without a GPU.

Each stream is a thread that runs its commands in order, late: a seeded random delay stands
before each. "Device" tensors are CPU tensors that only stream commands may touch.
"""

from __future__ import annotations

import ctypes
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

HANG_S = 30.0


class FakeStream:
    """Runs what it is given, in order, on a thread of its own."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def give(self, work: Callable[[], object]) -> None:
        self._work.put(work)

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            if self._draw.randrange(4) == 0:
                time.sleep(self._draw.randrange(300) / 1e6)
            try:
                work()
            except BaseException as failure:  # noqa: BLE001 - shown by the test, in its thread
                self.failure = failure


def _await(condition: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + HANG_S
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(f"a stream hangs: {what}")
        time.sleep(2e-5)


class FakeStreams:
    """``GpuStreams`` over ``FakeStream``."""

    device_type = "cpu"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: list[FakeStream] = []
        self.compute = self.create_stream()

    def current(self) -> FakeStream:
        return self.compute

    def create_stream(self) -> FakeStream:
        self._streams.append(FakeStream(self._seed * 100 + len(self._streams)))
        return self._streams[-1]

    def record(self, stream: FakeStream) -> threading.Event:
        event = threading.Event()
        stream.give(event.set)
        return event

    def wait_event(self, stream: FakeStream, event: threading.Event) -> None:
        stream.give(lambda: _await(event.is_set, "event"))

    def reached(self, event: threading.Event) -> bool:
        return event.is_set()

    def copy(self, stream: FakeStream, target: torch.Tensor, source: torch.Tensor) -> None:
        stream.give(lambda: target.copy_(source))

    def write_value(self, stream: FakeStream, address: int, value: int) -> None:
        word = ctypes.c_uint64.from_address(address)

        def write() -> None:
            assert word.value < value, "tickets only grow"
            word.value = value

        stream.give(write)

    def wait_value(self, stream: FakeStream, address: int, value: int) -> None:
        word = ctypes.c_uint64.from_address(address)
        stream.give(lambda: _await(lambda: word.value >= value, f"word {word.value} < {value}"))

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.zeros(nbytes, dtype=torch.uint8)

    def completed_future(self, stream: FakeStream, value: Any) -> torch.futures.Future[Any]:
        self.wait_event(self.compute, self.record(stream))
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(value)
        return future

    def synchronize(self, stream: FakeStream) -> None:
        assert self.record(stream).wait(HANG_S)

    def close(self) -> None:
        """Stop all streams and show what failed on them."""
        for stream in self._streams:
            stream.close()
        for stream in self._streams:
            if stream.failure is not None:
                raise stream.failure
