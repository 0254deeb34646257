"""One record per collective, in the shape of nccl-tests: sizes, data, bus bandwidth, call.

``size`` means what it means in nccl-tests (its ``doc/PERFORMANCE.md``): the bytes of the largest
buffer a rank holds. Bus bandwidth is ``size / time * factor`` and compares directly with the
rate of one link in one direction, whatever the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mccl.bench import exact
from mccl.errors import UsageError

REDUCE_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}

# Newer torch renames these two and warns about the old names.
_ALL_GATHER = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass(frozen=True)
class Shape:
    """Who calls what: everything a collective's data depends on."""

    rank: int
    world: int
    count: int
    """Elements of the largest buffer (a multiple of world where the collective splits it)."""
    dtype: torch.dtype
    redop: str
    in_place: bool
    device: torch.device
    seed: int = 1

    def block(self, rank: int) -> Tensor:
        """The exact-answer block that ``rank`` contributes."""
        return exact.rank_block(self.seed, rank, self.world, self.dtype, self.redop)


@dataclass
class Buffers:
    """Tensors of one call; ``send`` and ``receive`` may be one tensor (in place)."""

    send: Tensor
    receive: Tensor


Group = dist.ProcessGroup
Call = Callable[[Buffers, Shape, Group, bool], Any]


@dataclass(frozen=True)
class CollectiveBench:
    """What the sweep needs to know of one collective.

    ``allocate`` gives tensors; ``fill`` writes the inputs (again before each checked call);
    ``call`` issues it; ``wrong`` counts wrong elements of this rank's result.
    """

    name: str
    factor: Callable[[int], float]
    """Bus bandwidth over algorithm bandwidth, by world size."""
    in_place: tuple[bool, ...]
    """Forms that torch.distributed offers."""
    reduces: bool
    splits: bool
    """The largest buffer holds one equal part a rank."""
    allocate: Callable[[Shape], Buffers]
    fill: Callable[[Buffers, Shape], None]
    call: Call
    wrong: Callable[[Buffers, Shape], int]


def _new(shape: Shape, count: int) -> Tensor:
    return torch.empty(count, dtype=shape.dtype, device=shape.device)


def _part(tensor: Tensor, shape: Shape, rank: int) -> Tensor:
    length = shape.count // shape.world
    return tensor[rank * length : (rank + 1) * length]


def _one_buffer(shape: Shape) -> Buffers:
    tensor = _new(shape, shape.count)
    return Buffers(tensor, tensor)


def _fill_send(buffers: Buffers, shape: Shape) -> None:
    exact.fill(buffers.send, shape.block(shape.rank))


def _wrong_reduced(buffers: Buffers, shape: Shape) -> int:
    block = exact.reduced_block(shape.seed, shape.world, shape.dtype, shape.redop)
    return exact.count_wrong(buffers.receive, block)


# -- all_reduce


def _all_reduce(buffers: Buffers, shape: Shape, group: Group, async_op: bool) -> Any:
    return dist.all_reduce(buffers.receive, REDUCE_OPS[shape.redop], group, async_op)


# -- broadcast, reduce: root 0


def _fill_broadcast(buffers: Buffers, shape: Shape) -> None:
    if shape.rank == 0:
        exact.fill(buffers.send, shape.block(0))
    else:
        buffers.send.zero_()


def _broadcast(buffers: Buffers, shape: Shape, group: Group, async_op: bool) -> Any:
    return dist.broadcast(buffers.send, 0, group, async_op)


def _wrong_broadcast(buffers: Buffers, shape: Shape) -> int:
    return exact.count_wrong(buffers.receive, shape.block(0))


def _reduce(buffers: Buffers, shape: Shape, group: Group, async_op: bool) -> Any:
    return dist.reduce(buffers.send, 0, REDUCE_OPS[shape.redop], group, async_op)


def _wrong_reduce(buffers: Buffers, shape: Shape) -> int:
    return _wrong_reduced(buffers, shape) if shape.rank == 0 else 0


# -- all_gather, gather: parts one a rank


def _allocate_gather(shape: Shape) -> Buffers:
    receive = _new(shape, shape.count)
    part = _part(receive, shape, shape.rank)
    return Buffers(part if shape.in_place else torch.empty_like(part), receive)


def _all_gather(buffers: Buffers, shape: Shape, group: Group, async_op: bool) -> Any:
    return _ALL_GATHER(buffers.receive, buffers.send, group, async_op)


def _wrong_all_gather(buffers: Buffers, shape: Shape) -> int:
    return sum(
        exact.count_wrong(_part(buffers.receive, shape, rank), shape.block(rank))
        for rank in range(shape.world)
    )


def _gather(buffers: Buffers, shape: Shape, group: Group, async_op: bool) -> Any:
    parts = list(buffers.receive.chunk(shape.world)) if shape.rank == 0 else None
    return dist.gather(buffers.send, parts, 0, group, async_op)


def _wrong_gather(buffers: Buffers, shape: Shape) -> int:
    return _wrong_all_gather(buffers, shape) if shape.rank == 0 else 0


# -- reduce_scatter, scatter


def _allocate_scatter(shape: Shape) -> Buffers:
    send = _new(shape, shape.count)
    part = _part(send, shape, shape.rank)
    return Buffers(send, part if shape.in_place else torch.empty_like(part))


def _reduce_scatter(buffers: Buffers, shape: Shape, group: Group, async_op: bool) -> Any:
    op = REDUCE_OPS[shape.redop]
    return _REDUCE_SCATTER(buffers.receive, buffers.send, op, group, async_op)


def _wrong_reduce_scatter(buffers: Buffers, shape: Shape) -> int:
    block = exact.reduced_block(shape.seed, shape.world, shape.dtype, shape.redop)
    return exact.count_wrong(buffers.receive, block, shape.rank * buffers.receive.numel())


def _scatter(buffers: Buffers, shape: Shape, group: Group, async_op: bool) -> Any:
    parts = list(buffers.send.chunk(shape.world)) if shape.rank == 0 else None
    return dist.scatter(buffers.receive, parts, 0, group, async_op)


def _wrong_scatter(buffers: Buffers, shape: Shape) -> int:
    start = shape.rank * buffers.receive.numel()
    return exact.count_wrong(buffers.receive, shape.block(0), start)


# -- all_to_all


def _allocate_pair(shape: Shape) -> Buffers:
    return Buffers(_new(shape, shape.count), _new(shape, shape.count))


def _all_to_all(buffers: Buffers, shape: Shape, group: Group, async_op: bool) -> Any:
    return dist.all_to_all_single(buffers.receive, buffers.send, None, None, group, async_op)


def _wrong_all_to_all(buffers: Buffers, shape: Shape) -> int:
    start = shape.rank * (shape.count // shape.world)
    return sum(
        exact.count_wrong(_part(buffers.receive, shape, rank), shape.block(rank), start)
        for rank in range(shape.world)
    )


# -- send/recv around the ring


def _send_receive(buffers: Buffers, shape: Shape, group: Group, async_op: bool) -> Any:
    following, previous = (shape.rank + 1) % shape.world, (shape.rank - 1) % shape.world
    works = [
        dist.isend(buffers.send, following, group),
        dist.irecv(buffers.receive, previous, group),
    ]
    for work in works:
        if work is not None:
            work.wait()
    return None


def _wrong_send_receive(buffers: Buffers, shape: Shape) -> int:
    return exact.count_wrong(buffers.receive, shape.block((shape.rank - 1) % shape.world))


def _ring(world: int) -> float:
    return 2 * (world - 1) / world


def _share(world: int) -> float:
    return (world - 1) / world


def _whole(world: int) -> float:
    return 1.0


_OUT = (False,)
_IN = (True,)
_BOTH = (False, True)

COLLECTIVES: dict[str, CollectiveBench] = {
    bench.name: bench
    for bench in (
        CollectiveBench(
            "all_reduce",
            _ring,
            _IN,
            True,
            False,
            _one_buffer,
            _fill_send,
            _all_reduce,
            _wrong_reduced,
        ),
        CollectiveBench(
            "broadcast",
            _whole,
            _IN,
            False,
            False,
            _one_buffer,
            _fill_broadcast,
            _broadcast,
            _wrong_broadcast,
        ),
        CollectiveBench(
            "reduce", _whole, _IN, True, False, _one_buffer, _fill_send, _reduce, _wrong_reduce
        ),
        CollectiveBench(
            "all_gather",
            _share,
            _BOTH,
            False,
            True,
            _allocate_gather,
            _fill_send,
            _all_gather,
            _wrong_all_gather,
        ),
        CollectiveBench(
            "reduce_scatter",
            _share,
            _BOTH,
            True,
            True,
            _allocate_scatter,
            _fill_send,
            _reduce_scatter,
            _wrong_reduce_scatter,
        ),
        CollectiveBench(
            "gather",
            _share,
            _OUT,
            False,
            True,
            _allocate_gather,
            _fill_send,
            _gather,
            _wrong_gather,
        ),
        CollectiveBench(
            "scatter",
            _share,
            _OUT,
            False,
            True,
            _allocate_scatter,
            _fill_send,
            _scatter,
            _wrong_scatter,
        ),
        CollectiveBench(
            "all_to_all",
            _share,
            _OUT,
            False,
            True,
            _allocate_pair,
            _fill_send,
            _all_to_all,
            _wrong_all_to_all,
        ),
        CollectiveBench(
            "sendrecv",
            _whole,
            _OUT,
            False,
            False,
            _allocate_pair,
            _fill_send,
            _send_receive,
            _wrong_send_receive,
        ),
    )
}


def element_count(bench: CollectiveBench, nbytes: int, dtype: torch.dtype, world: int) -> int:
    """Elements nearest below ``nbytes`` that the collective can carry (at least one, or world)."""
    count = max(1, nbytes // dtype.itemsize)
    return max(world, count // world * world) if bench.splits else count


def find(name: str) -> CollectiveBench:
    """The record of a collective.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in COLLECTIVES:
        raise UsageError(f"collective {name!r} is unknown: choose from {', '.join(COLLECTIVES)}")
    return COLLECTIVES[name]
