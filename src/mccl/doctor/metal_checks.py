"""What ``mccl doctor --metal`` checks on a rank: one function an invariant.

A check returns a remark for the report and raises ``Violated`` when the invariant does not
hold. Checks run on all ranks together, in the same order.
"""

from __future__ import annotations

import ctypes
import platform
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mccl.engine import DType, RedOp, native_library
from mccl.errors import UsageError

BURST = 640
WINDOW = 32


class Violated(Exception):  # noqa: N818 - a verdict about an invariant
    """An invariant does not hold; the text says how it showed."""


class Judge:
    """One rank's device and a count, kept there, of what was wrong."""

    def __init__(self, rank: int, world: int, device: torch.device) -> None:
        self.rank, self.world, self.device = rank, world, device
        self.factor = sum(r + 1 for r in range(world))
        self.wrong = torch.zeros((), dtype=torch.int64, device=device)

    def fill(self, tensor: torch.Tensor, k: int) -> None:
        """Kernels that write this rank's input; the last one runs long after the call."""
        tensor.fill_(float((self.rank + 1) * k) - 8.0)
        for _ in range(8):
            tensor.add_(1.0)

    def look(self, tensor: torch.Tensor, k: int) -> None:
        """A kernel that reads the sum over all ranks."""
        self.wrong += (tensor != float(self.factor * k)).sum()

    def verdict(self, what: str) -> None:
        """Bring the count to the host and judge it."""
        wrong = int(self.wrong.item())
        self.wrong.zero_()
        self.require(wrong == 0, f"{wrong} elements wrong: {what}")

    def require(self, holds: bool, otherwise: str) -> None:
        """Raise ``Violated`` unless it holds."""
        if not holds:
            raise Violated(otherwise)


def gradient(parameter: torch.Tensor) -> torch.Tensor:
    """What backward left on a parameter."""
    if parameter.grad is None:
        raise Violated("backward left a parameter without gradient")
    return parameter.grad


def burst(judge: Judge) -> str:
    """O1, O2: asynchronous bursts, no host synchronisation, exact"""
    flight: list[tuple[Any, torch.Tensor, int]] = []
    for k in range(1, BURST + 1):
        tensor = torch.empty((64, 1024, 65_537, 1 << 20)[k % 4], device=judge.device)
        judge.fill(tensor, k)
        flight.append((dist.all_reduce(tensor, async_op=True), tensor, k))
        if len(flight) > WINDOW:
            work, tensor, done = flight.pop(0)
            work.wait()
            judge.look(tensor, done)
    for work, tensor, done in flight:
        work.wait()
        judge.look(tensor, done)
    judge.verdict("the engine read too early, or the GPU did")
    return f"{BURST} operations, {WINDOW} in flight"


def temporaries(judge: Judge) -> str:
    """B1: a bucket is held until wait, also when the caller forgets it"""
    flight: list[Any] = []
    rounds = 100
    for k in range(1, rounds + 1):
        shape = (1 << 16,)
        forgotten = torch.empty(shape, device=judge.device)
        judge.fill(forgotten, k)
        flight.append(dist.all_reduce(forgotten, async_op=True))
        del forgotten
        # The allocator may hand out the forgotten memory now; the engine must not write it.
        fresh = torch.full(shape, float(k), device=judge.device)
        judge.wrong += (fresh * 2.0 != 2.0 * k).sum()
        judge.wrong += (fresh != float(k)).sum()
        if k % 2:
            flight.pop().wait()
    for work in flight:
        work.wait()
    judge.verdict("a forgotten bucket's memory was reused while in use")
    return f"{rounds} forgotten buckets"


def views(judge: Judge) -> str:
    """Views: offset, strided, transposed, several of one storage"""
    for k in range(1, 21):
        base = torch.zeros(4096, device=judge.device)
        square = base[:1024].view(32, 32)
        parts = [base[2048:3072], base[3072::2], square[:, ::2], square.t()[1::2]]
        works = []
        for part in parts[:2]:
            judge.fill(part, k)
            works.append((dist.all_reduce(part, async_op=True), part))
        for work, part in works:
            work.wait()
            judge.look(part, k)
        for part in parts[2:]:
            judge.fill(part, k)
            dist.all_reduce(part)
            judge.look(part, k)
        judge.wrong += (base[1024:2048] != 0).sum()
    judge.verdict("a view was moved wrongly")
    return ""


def backward(judge: Judge) -> str:
    """DDP: gradients equal a synchronous sum, bit for bit, with and without a hook"""
    torch.manual_seed(0)
    layers = [m for _ in range(6) for m in (nn.Linear(256, 256), nn.ReLU())]
    net = nn.Sequential(*layers).to(judge.device)
    draw = torch.Generator().manual_seed(1 + judge.rank)
    x = torch.randn(64, 256, generator=draw).to(judge.device)
    net(x).square().mean().backward()
    expected = []
    for parameter in net.parameters():
        host = (gradient(parameter) / judge.world).cpu()
        dist.all_reduce(host)
        expected.append(host)
        parameter.grad = None
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.3, gradient_as_bucket_view=True)
    for step in range(5):
        if step == 3:
            # torch checks annotations by identity, so the hook it sees has none.
            ddp.register_comm_hook(None, lambda state, bucket: _scaling_hook(bucket))
        ddp.zero_grad(set_to_none=False)
        ddp(x).square().mean().backward()
        for parameter, host in zip(net.parameters(), expected, strict=True):
            judge.wrong += (gradient(parameter) != host.to(judge.device)).sum()
    judge.verdict("DDP's gradients")
    return "5 steps, 2 of them with a communication hook"


def _scaling_hook(bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """Works on the device before and after the sum; exact, for it scales by powers of two."""
    tensor = bucket.buffer().mul_(4.0)
    future = dist.all_reduce(tensor, async_op=True).get_future()

    def scale(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        result: torch.Tensor = done.value()[0].mul_(0.25 / dist.get_world_size())
        return result

    chained: torch.futures.Future[torch.Tensor] = future.then(scale)
    return chained


def second_thread(judge: Judge) -> str:
    """O3: a second thread on the stream is refused, not crashed into"""
    if judge.device.type != "mps":
        return "applies to mps only"
    tensor = torch.ones(1 << 20, device=judge.device)
    work = dist.all_reduce(tensor, async_op=True)
    refused: list[BaseException] = []

    def intrude() -> None:
        try:
            work.wait()
        except UsageError as error:
            refused.append(error)

    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()
    work.wait()
    judge.require(bool(refused), "a second thread waited on the stream and was let through")
    judge.wrong += (tensor != float(judge.world)).sum()
    judge.verdict("the refused wait spoilt the result")
    return ""


def mixed_devices(judge: Judge) -> str:
    """CPU tensors and device tensors in one group, interleaved"""
    for k in range(1, 33):
        host, device = torch.empty(1000), torch.empty(1000, device=judge.device)
        judge.fill(host, k)
        judge.fill(device, k)
        works = [dist.all_reduce(t, async_op=True) for t in (host, device)]
        for work in works:
            work.wait()
        judge.require(bool((host == float(judge.factor * k)).all()), "a CPU tensor is wrong")
        judge.look(device, k)
    judge.verdict("a device tensor between CPU tensors")
    return ""


CHECKS: dict[str, Callable[[Judge], str]] = {
    "burst": burst,
    "temporaries": temporaries,
    "views": views,
    "backward": backward,
    "second_thread": second_thread,
    "mixed_devices": mixed_devices,
}


def native_add(n: int = 1 << 22) -> Callable[[], int]:
    """One run of the engine's float32 sum; it returns the bytes written."""
    a, b, out = (torch.ones(n) for _ in range(3))
    library = native_library()

    def add() -> int:
        library.mccl_reduce(
            int(DType.F32), int(RedOp.SUM), out.data_ptr(), a.data_ptr(), b.data_ptr(), n
        )
        return n * 4

    return add


def accelerate_add(n: int = 1 << 22) -> Callable[[], int] | None:
    """The same by vDSP_vadd; None where there is no Accelerate."""
    if platform.system() != "Darwin":
        return None
    library = ctypes.CDLL("/System/Library/Frameworks/Accelerate.framework/Accelerate")
    function = library.vDSP_vadd
    function.restype = None
    pointer, stride = ctypes.c_void_p, ctypes.c_long
    function.argtypes = [pointer, stride, pointer, stride, pointer, stride, ctypes.c_ulong]
    a, b, out = (torch.ones(n) for _ in range(3))

    def add() -> int:
        function(a.data_ptr(), 1, b.data_ptr(), 1, out.data_ptr(), 1, n)
        return n * 4

    return add
