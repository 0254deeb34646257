"""Every collective, every dtype, every shape and memory layout, against values computed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.process_group.ranks import run
from tests.process_group.values import (
    INTEGERS,
    LARGE,
    MOVED,
    REDUCIBLE,
    SHAPES,
    combined,
    layouts,
    same,
    values,
)

OPS = (dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN,
       dist.ReduceOp.MAX)  # fmt: skip
BITWISE = (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)
ALL_SHAPES = (*SHAPES, LARGE)


def finish(work: Any, asynchronous: bool) -> None:
    if asynchronous:
        assert work.wait() is True
        assert work.is_completed()
        assert work.is_success()
        assert work.exception() is None
    else:
        assert work is None


def empty_layouts(shape: tuple[int, ...], dtype: torch.dtype) -> list[tuple[str, torch.Tensor]]:
    return list(layouts(torch.zeros(shape, dtype=dtype)))


def reductions(dtype: torch.dtype) -> tuple[Any, ...]:
    return (*OPS, *BITWISE) if dtype in INTEGERS else OPS


# ---- what the ranks run ----------------------------------------------------------------------


def all_reduce(rank: int, n: int) -> None:
    for dtype in REDUCIBLE:
        for op in reductions(dtype):
            for shape in ALL_SHAPES if op is dist.ReduceOp.SUM else ((3, 5), (70_001,)):
                expected = combined([values(r, shape, dtype) for r in range(n)], op)
                for index, (name, tensor) in enumerate(layouts(values(rank, shape, dtype))):
                    asynchronous = index % 2 == 1
                    work = dist.all_reduce(tensor, op, async_op=asynchronous)
                    finish(work, asynchronous)
                    same(tensor, expected, (dtype, op, shape, name))


def all_reduce_repeated(rank: int, n: int) -> None:
    for i in range(30):
        tensor = values(rank, (257,), torch.float32, seed=i)
        dist.all_reduce(tensor)
        same(
            tensor,
            combined([values(r, (257,), torch.float32, seed=i) for r in range(n)], OPS[0]),
            i,
        )
    columns = values(rank, (64, 6), torch.float32)
    dist.all_reduce(columns[:, 1])
    dist.all_reduce(columns[:, 1])
    expected = combined([values(r, (64, 6), torch.float32)[:, 1] for r in range(n)], OPS[0]) * n
    same(columns[:, 1], expected, "column")
    same(columns[:, 0], values(rank, (64, 6), torch.float32)[:, 0], "neighbour column untouched")


def all_reduce_special(rank: int, n: int) -> None:
    for dtype in (torch.complex64, torch.complex128):
        tensor = values(rank, (9,), dtype)
        dist.all_reduce(tensor)
        same(tensor, combined([values(r, (9,), dtype) for r in range(n)], OPS[0]), dtype)
        tensor = values(rank, (9,), dtype)
        dist.group.WORLD.allreduce([tensor]).wait()
        same(tensor, combined([values(r, (9,), dtype) for r in range(n)], OPS[0]), dtype)
    for op, expected in (
        (dist.ReduceOp.MAX, torch.stack([values(r, (50,), torch.bool) for r in range(n)]).any(0)),
        (dist.ReduceOp.MIN, torch.stack([values(r, (50,), torch.bool) for r in range(n)]).all(0)),
        (dist.ReduceOp.BOR, torch.stack([values(r, (50,), torch.bool) for r in range(n)]).any(0)),
        (dist.ReduceOp.BAND, torch.stack([values(r, (50,), torch.bool) for r in range(n)]).all(0)),
    ):
        tensor = values(rank, (50,), torch.bool)
        dist.all_reduce(tensor, op)
        same(tensor, expected, op)
    negative = torch._neg_view(values(rank, (6,), torch.float32))
    dist.all_reduce(negative)
    same(negative, -combined([values(r, (6,), torch.float32) for r in range(n)], OPS[0]), "neg")
    for factor in (0.5, 0.25, torch.tensor(0.5)):
        tensor = values(rank, (33,), torch.float32)
        dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
        exact = combined([values(r, (33,), torch.float32) for r in range(n)], OPS[0])
        same(tensor, exact * float(factor), ("premul", factor))
    mean = torch.tensor([-7, 7, -1], dtype=torch.int32) * (rank + 1)
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    total = torch.tensor([-7, 7, -1]) * (n * (n + 1) // 2)
    same(mean, torch.div(total, n, rounding_mode="trunc").to(torch.int32), "integer mean")


def all_reduce_sparse(rank: int, n: int) -> None:
    def entries(r: int) -> torch.Tensor:
        places = torch.tensor([[0, r, r + 1]])
        return torch.sparse_coo_tensor(places, values(r, (3, 2), torch.float32), (n + 2, 2))

    tensor = entries(rank)
    dist.all_reduce(tensor)
    same(tensor.to_dense(), sum(entries(r).to_dense() for r in range(n)), "sparse")


def coalesced(rank: int, n: int) -> None:
    group = dist.group.WORLD
    shapes = ((3,), (5, 2), (0,), (200,))
    tensors = [values(rank, shape, torch.float32) for shape in shapes]
    group.allreduce_coalesced(tensors).wait()
    for shape, tensor in zip(shapes, tensors, strict=True):
        expected = combined([values(r, shape, torch.float32) for r in range(n)], OPS[0])
        same(tensor, expected, shape)
    inputs = [values(rank, shape, torch.float32) for shape in shapes]
    wholes = [torch.zeros(n * t.numel()) for t in inputs]
    for method in (group.all_gather_single_coalesced, group.allgather_into_tensor_coalesced):
        method(wholes, inputs).wait()
        for shape, whole in zip(shapes, wholes, strict=True):
            pieces = [values(r, shape, torch.float32).reshape(-1) for r in range(n)]
            same(whole, torch.cat(pieces), shape)
            whole.zero_()
    outputs = [torch.zeros(4), torch.zeros(0), torch.zeros(2, 3)]
    sources = [values(rank, (n, *t.shape), torch.float32) for t in outputs]
    for method in (group.reduce_scatter_single_coalesced, group.reduce_scatter_tensor_coalesced):
        method(outputs, sources).wait()
        for output in outputs:
            full = combined([values(r, (n, *output.shape), torch.float32) for r in range(n)],
                            OPS[0])  # fmt: skip
            same(output, full[rank], "reduce_scatter coalesced")
            output.zero_()
    lists = [[torch.zeros(3), torch.zeros(2, 2)] for _ in range(n)]
    mine = [values(rank, (3,), torch.float32), values(rank, (2, 2), torch.float32)]
    group.allgather_coalesced(lists, mine).wait()
    for r in range(n):
        same(lists[r][0], values(r, (3,), torch.float32), r)
        same(lists[r][1], values(r, (2, 2), torch.float32), r)
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor.zero_().add_(1))
    manager.wait()
    assert all(bool((t == n).all()) for t in tensors)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for i, tensor in enumerate(tensors):
            dist.broadcast(tensor.fill_(rank), src=i % n)
    manager.wait()
    assert all(bool((t == i % n).all()) for i, t in enumerate(tensors))


def broadcast(rank: int, n: int) -> None:
    for dtype in MOVED:
        for shape in ALL_SHAPES if dtype in (torch.float32, torch.uint16) else ((3, 5), LARGE):
            for root in range(n):
                for index, (name, tensor) in enumerate(layouts(values(rank, shape, dtype))):
                    asynchronous = index % 2 == 0
                    finish(dist.broadcast(tensor, root, async_op=asynchronous), asynchronous)
                    same(tensor, values(root, shape, dtype), (dtype, shape, root, name))
                if dtype not in (torch.float32, torch.uint16):
                    break


def reduce(rank: int, n: int) -> None:
    for dtype in REDUCIBLE:
        for op in reductions(dtype):
            for shape in ALL_SHAPES if dtype is torch.float32 else ((7,), (70_001,)):
                root = len(shape) % n
                expected = combined([values(r, shape, dtype) for r in range(n)], op)
                for name, tensor in layouts(values(rank, shape, dtype)):
                    asynchronous = name == "strided"
                    finish(dist.reduce(tensor, root, op, async_op=asynchronous), asynchronous)
                    if rank == root:
                        same(tensor, expected, (dtype, op, shape, name))


def all_gather(rank: int, n: int) -> None:
    for dtype in MOVED:
        for shape in ALL_SHAPES if dtype in (torch.float32, torch.bool) else ((3, 5), LARGE):
            for index, (name, tensor) in enumerate(layouts(values(rank, shape, dtype))):
                asynchronous = index % 2 == 0
                outputs = [empty_layouts(shape, dtype)[index][1] for _ in range(n)]
                finish(dist.all_gather(outputs, tensor, async_op=asynchronous), asynchronous)
                for r in range(n):
                    same(outputs[r], values(r, shape, dtype), (dtype, shape, name, r))
                whole = torch.zeros((n, *shape), dtype=dtype)
                if shape:
                    whole = torch.zeros((n * shape[0], *shape[1:]), dtype=dtype)
                    dist.all_gather_into_tensor(whole, tensor)
                    expected = torch.cat([values(r, shape, dtype) for r in range(n)])
                    same(whole, expected, (dtype, shape, name))
    own = torch.zeros(n, 4)
    own[rank] = values(rank, (4,), torch.float32)
    dist.all_gather_into_tensor(own, own[rank])
    same(own, torch.stack([values(r, (4,), torch.float32) for r in range(n)]), "in place")
    uneven = [torch.zeros(r * 3) for r in range(n)]
    dist.all_gather(uneven, values(rank, (rank * 3,), torch.float32))
    for r in range(n):
        same(uneven[r], values(r, (r * 3,), torch.float32), ("uneven", r))
    columns = torch.zeros(5, n)
    dist.all_gather(list(columns.unbind(1)), values(rank, (5,), torch.float32))
    expected = torch.stack([values(r, (5,), torch.float32) for r in range(n)], 1)
    same(columns, expected, "columns of one matrix")


def gather(rank: int, n: int) -> None:
    for dtype in MOVED:
        for shape in ALL_SHAPES if dtype in (torch.float32, torch.int8) else ((3, 5), LARGE):
            root = len(shape) % n
            for index, (name, tensor) in enumerate(layouts(values(rank, shape, dtype))):
                asynchronous = index % 2 == 0
                outputs = None
                if rank == root:
                    outputs = [empty_layouts(shape, dtype)[index][1] for _ in range(n)]
                finish(dist.gather(tensor, outputs, root, async_op=asynchronous), asynchronous)
                for r in range(n if outputs else 0):
                    same(outputs[r], values(r, shape, dtype), (dtype, shape, name, r))


def scatter(rank: int, n: int) -> None:
    for dtype in MOVED:
        for shape in ALL_SHAPES if dtype in (torch.float32, torch.int8) else ((3, 5), LARGE):
            root = len(shape) % n
            for index, (name, tensor) in enumerate(empty_layouts(shape, dtype)):
                asynchronous = index % 2 == 0
                pieces = None
                if rank == root:
                    pieces = [list(layouts(values(r, shape, dtype)))[index][1] for r in range(n)]
                finish(dist.scatter(tensor, pieces, root, async_op=asynchronous), asynchronous)
                same(tensor, values(rank, shape, dtype), (dtype, shape, name))


def reduce_scatter(rank: int, n: int) -> None:
    for dtype in REDUCIBLE:
        for op in reductions(dtype):
            for shape in ALL_SHAPES if dtype is torch.float32 else ((3, 5), LARGE):
                expected = combined([values(r, shape, dtype, seed=rank) for r in range(n)], op)
                for index, (name, output) in enumerate(empty_layouts(shape, dtype)):
                    asynchronous = index % 2 == 0
                    pieces = [
                        list(layouts(values(rank, shape, dtype, seed=piece)))[index][1]
                        for piece in range(n)
                    ]
                    work = dist.reduce_scatter(output, pieces, op, async_op=asynchronous)
                    finish(work, asynchronous)
                    same(output, expected, (dtype, op, shape, name))
                    output.zero_()
                    if shape:
                        whole = torch.cat(pieces)
                        dist.reduce_scatter_tensor(output, whole, op)
                        same(output, expected, (dtype, op, shape, name, "tensor"))
                        assert torch.equal(whole, torch.cat(pieces)), "input changed"
    uneven = [values(rank, (r * 2 + 1,), torch.float32, seed=r) for r in range(n)]
    output = torch.zeros(rank * 2 + 1)
    dist.reduce_scatter(output, uneven)
    expected = combined(
        [values(r, (rank * 2 + 1,), torch.float32, seed=rank) for r in range(n)], OPS[0]
    )
    same(output, expected, "uneven")
    if n == 4:
        whole = values(rank, (n, 8), torch.float32)
        dist.reduce_scatter_tensor(whole[rank], whole)
        full = combined([values(r, (n, 8), torch.float32) for r in range(n)], OPS[0])
        same(whole[rank], full[rank], "in place")


def all_to_all(rank: int, n: int) -> None:
    for dtype in MOVED:
        for shape in ((4,), (3, 5), (0, 2), (20_001,)):
            for index, (name, _) in enumerate(empty_layouts(shape, dtype)):
                asynchronous = index % 2 == 0
                inputs = [
                    list(layouts(values(rank, shape, dtype, seed=to)))[index][1] for to in range(n)
                ]
                outputs = [empty_layouts(shape, dtype)[index][1] for _ in range(n)]
                finish(dist.all_to_all(outputs, inputs, async_op=asynchronous), asynchronous)
                for r in range(n):
                    same(outputs[r], values(r, shape, dtype, seed=rank), (dtype, shape, name, r))
                whole = torch.cat(outputs)
                dist.all_to_all_single(whole.zero_(), torch.cat(inputs))
                same(whole, torch.cat(outputs), (dtype, shape, name, "single"))
    # Rank s sends (s + 2 d) rows to rank d.
    send = [rank + 2 * d for d in range(n)]
    recv = [s + 2 * rank for s in range(n)]
    source = torch.cat([values(rank, (k, 3), torch.float32, seed=d) for d, k in enumerate(send)])
    target = torch.zeros(sum(recv), 3)
    dist.all_to_all_single(target, source, recv, send)
    expected = torch.cat([values(s, (k, 3), torch.float32, seed=rank) for s, k in enumerate(recv)])
    same(target, expected, "uneven")


def barrier(rank: int, n: int) -> None:
    dist.barrier()
    dist.barrier(async_op=True).wait()
    dist.barrier(device_ids=[0])
    dist.group.WORLD.barrier().wait()


COLLECTIVES: tuple[Callable[[int, int], None], ...] = (
    all_reduce,
    all_reduce_repeated,
    all_reduce_special,
    all_reduce_sparse,
    coalesced,
    broadcast,
    reduce,
    all_gather,
    gather,
    scatter,
    reduce_scatter,
    all_to_all,
    barrier,
)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda f: f.__name__)
def test_exact(collective: Callable[[int, int], None], world_size: int) -> None:
    run(world_size, collective, limit=100)
