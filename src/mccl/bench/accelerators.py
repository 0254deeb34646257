"""What produces gradient buckets in a synthetic step: a real accelerator, or a timer.

``produce(number, share)`` stands for the kernels that write one bucket and take ``share`` of the
step. On CUDA and MPS it queues them and returns at once; the simulated device has no queue, so it
returns when the bucket would be written, having slept: like a GPU, it needs no CPU meanwhile.
"""

from __future__ import annotations

import time
from typing import Protocol

import torch

from mccl.errors import UsageError


class Accelerator(Protocol):
    """A producer of buckets."""

    device: torch.device

    def calibrate(self, seconds: float) -> None:
        """A whole step shall take ``seconds``."""

    def begin(self) -> None:
        """A step starts now."""

    def produce(self, number: int, share: float) -> None:
        """Write the next bucket, taking ``share`` of a step."""

    def settle(self) -> None:
        """Block until everything queued has run."""


class Simulated:
    """A timer: every bucket is ready at its moment after ``begin``, whatever happened before.

    A late thread does not push later moments back, just as a busy CPU does not slow a GPU.
    """

    device = torch.device("cpu")

    def __init__(self) -> None:
        self._step = 0.0
        self._start = 0.0
        self._produced = 0.0

    def calibrate(self, seconds: float) -> None:
        """See ``Accelerator``."""
        self._step = seconds

    def begin(self) -> None:
        """See ``Accelerator``."""
        self._start = time.perf_counter()
        self._produced = 0.0

    def produce(self, number: int, share: float) -> None:
        """See ``Accelerator``."""
        self._produced += share
        left = self._start + self._produced * self._step - time.perf_counter()
        if left > 0:
            time.sleep(left)

    def settle(self) -> None:
        """See ``Accelerator``."""


class Matmuls:
    """Matrix products on a real accelerator, as many as fill the time wanted."""

    _SIDE = 2048

    def __init__(self, kind: str) -> None:
        available = (
            torch.cuda.is_available() if kind == "cuda" else torch.backends.mps.is_available()
        )
        if not available:
            raise UsageError(f"no {kind} device here: use --device simulated")
        self.device = torch.device(kind)
        self._a = torch.randn(self._SIDE, self._SIDE, device=self.device)
        self._out = torch.empty_like(self._a)
        self._products = 1.0
        self._owed = 0.0

    def calibrate(self, seconds: float) -> None:
        """See ``Accelerator``; measures products until they are long enough to judge."""
        products, taken = 10, 0.0
        while taken < 0.2:
            self.settle()
            start = time.perf_counter()
            self._multiply(products)
            self.settle()
            taken = time.perf_counter() - start
            products *= 2
        self._products = seconds / (taken / (products / 2))

    def begin(self) -> None:
        """See ``Accelerator``."""
        self._owed = 0.0

    def produce(self, number: int, share: float) -> None:
        """See ``Accelerator``."""
        self._owed += self._products * share
        whole = int(self._owed)
        self._multiply(whole)
        self._owed -= whole

    def _multiply(self, times: int) -> None:
        for _ in range(times):
            torch.mm(self._a, self._a, out=self._out)

    def settle(self) -> None:
        """See ``Accelerator``."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        else:
            torch.mps.synchronize()


def accelerator(kind: str) -> Accelerator:
    """The accelerator called ``simulated``, ``cuda`` or ``mps``.

    Raises:
        UsageError: there is none of that kind here.
    """
    return Simulated() if kind == "simulated" else Matmuls(kind)
