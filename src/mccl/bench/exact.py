"""Data whose reduction is exactly known, so that a check is an equality.

Every rank's data is a block of ``PERIOD`` small numbers repeated to the length wanted. The block
depends on the seed and the rank only, so any rank can compute any other's, and any slice of a
result can be checked alone. ``PERIOD`` is prime: no chunk size of an algorithm lines up with it,
so a chunk that lands in the wrong place shows. The numbers are chosen so that *every partial
result in every order* is representable in the dtype; there is no tolerance to argue about
(nccl-tests' ``verifiable`` has the same aim).
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from mccl.errors import UsageError

PERIOD = 65521

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
    "int8": torch.int8,
    "uint8": torch.uint8,
}

REDOPS = ("sum", "avg", "product", "min", "max")

_LARGEST_EXACT = {
    torch.float64: 2**53,
    torch.float32: 2**24,
    torch.float16: 2**11,
    torch.bfloat16: 2**8,
    torch.int64: 2**63 - 1,
    torch.int32: 2**31 - 1,
    torch.int8: 2**7 - 1,
    torch.uint8: 2**8 - 1,
}


_CACHED = 256


def _hash(seed: int, rank: int) -> Tensor:
    """``PERIOD`` well-mixed non-negative int64 values (a 31-bit multiplicative hash)."""
    x = torch.arange(PERIOD, dtype=torch.int64) + (seed * 7919 + rank * 104729) % (1 << 20) * PERIOD
    for multiplier in (0x2545F491, 0x5851F42D):
        x = (x * multiplier) & 0x7FFFFFFF
        x = x ^ (x >> 15)
    return x


def _integers(seed: int, rank: int, world: int, dtype: torch.dtype, redop: str) -> Tensor:
    largest = _LARGEST_EXACT[dtype]
    mixed = _hash(seed, rank)
    if redop == "product":
        # One rank, different from element to element, gives 2 or 3; the others give 1.
        factor = 2 + mixed % 2
        return torch.where(_hash(seed, -1) % world == rank, factor, torch.ones_like(factor))
    if redop == "avg":
        # A common value plus deviations that cancel over the ranks, so the average is exact.
        common = _hash(seed, -1) % max(1, min(1 << 10, largest // world) - 2) + 1
        last_unpaired = world % 2 == 1 and rank == world - 1
        return common + (0 if last_unpaired else 1 if rank % 2 == 0 else -1)
    bound = min(1 << 12, largest if redop in ("min", "max") else largest // world)
    if bound < 1:
        raise UsageError(f"{redop} of {dtype} over {world} ranks has no exactly known data")
    return mixed % (bound + 1)


@functools.lru_cache(_CACHED)
def rank_block(seed: int, rank: int, world: int, dtype: torch.dtype, redop: str = "sum") -> Tensor:
    """The ``PERIOD`` elements that ``rank`` repeats, of ``dtype``, on the CPU.

    Cached, so not to be written to.

    Raises:
        UsageError: no exactly summable data exists for this dtype and world size.
    """
    return _integers(seed, rank, world, dtype, redop).to(dtype)


@functools.lru_cache(_CACHED)
def reduced_block(seed: int, world: int, dtype: torch.dtype, redop: str) -> Tensor:
    """What the reduction over all ranks of ``rank_block`` must be, bit for bit."""
    blocks = torch.stack([_integers(seed, r, world, dtype, redop) for r in range(world)])
    if redop == "product":
        return blocks.prod(0).to(dtype)
    if redop == "min":
        return blocks.amin(0).to(dtype)
    if redop == "max":
        return blocks.amax(0).to(dtype)
    total = blocks.sum(0)
    return (total // world if redop == "avg" else total).to(dtype)


def fill(tensor: Tensor, block: Tensor, start: int = 0) -> None:
    """Write the repetition of ``block``, from its element ``start`` on, into a 1-D tensor."""
    block = block.to(tensor.device)
    rolled = block.roll(-(start % PERIOD)) if start % PERIOD else block
    whole = tensor.numel() // PERIOD * PERIOD
    if whole:
        tensor[:whole].view(-1, PERIOD).copy_(rolled)
    tensor[whole:].copy_(rolled[: tensor.numel() - whole])


def count_wrong(tensor: Tensor, block: Tensor, start: int = 0) -> int:
    """How many elements of a 1-D tensor differ from the repetition of ``block``."""
    block = block.to(tensor.device)
    rolled = block.roll(-(start % PERIOD)) if start % PERIOD else block
    whole = tensor.numel() // PERIOD * PERIOD
    wrong = int((tensor[whole:] != rolled[: tensor.numel() - whole]).sum())
    for row in tensor[:whole].view(-1, PERIOD):
        if not torch.equal(row, rolled):
            wrong += int((row != rolled).sum())
    return wrong
