"""Wrong arguments raise at once, name the thing, and leave the group usable."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

from mccl.errors import UsageError
from mccl.process_group import GroupOptions, create
from tests.process_group.ranks import run

FP8 = torch.float8_e4m3fn


def cases(rank: int, n: int) -> list[tuple[str, str, object]]:
    """(what, expected message, call)."""
    group = dist.group.WORLD
    one = torch.ones(4)
    return [
        ("fp8 sum", r"float8_e4m3fn is not supported; accepted dtypes for SUM: .*float32",
         lambda: dist.all_reduce(torch.ones(4).to(FP8))),
        ("bitwise float", r"BAND of torch.float32 .* accepted dtypes for BAND: .*int64",
         lambda: dist.all_reduce(one, dist.ReduceOp.BAND)),
        ("complex product", "PRODUCT of torch.complex64",
         lambda: group.allreduce([torch.ones(2, dtype=torch.complex64)],
                                 dist.ReduceOp.PRODUCT)),
        ("reduce fp8", "float8_e4m3fn", lambda: dist.reduce(torch.ones(4).to(FP8), 0)),
        ("reduce_scatter u16", "uint16",
         lambda: dist.reduce_scatter_tensor(torch.ones(1, dtype=torch.uint16),
                                            torch.ones(n, dtype=torch.uint16))),
        ("meta device", "meta", lambda: group.allreduce([torch.ones(4, device="meta")])),
        ("csr", "sparse_csr",
         lambda: dist.broadcast(torch.eye(3).to_sparse_csr(), 0)),
        ("sparse max", "SUM only",
         lambda: dist.all_reduce(torch.eye(3).to_sparse(), dist.ReduceOp.MAX)),
        ("two tensors", "exactly one tensor", lambda: group.allreduce([one, one])),
        ("no tensor", "exactly one tensor", lambda: group.broadcast([])),
        ("mixed coalesced", "tensors with different dtypes",
         lambda: group.allreduce_coalesced([one, one.half()])),
        ("gather dtypes", "tensors with different dtypes",
         lambda: group.allgather([[one.half()] * n], [one])),
        ("all_gather dtypes", "tensors with different dtypes",
         lambda: group.all_gather_single(torch.ones(4 * n).half(), one)),
        ("a2a dtypes", "tensors with different dtypes",
         lambda: group.all_to_all_single(torch.ones(n), torch.ones(n).double(), [], [])),
        ("all_gather list length", f"has {n + 1} tensors; expected one for each of the {n}",
         lambda: group.allgather([[torch.ones(4) for _ in range(n + 1)]], [one])),
        ("all_gather own size", "expected 4",
         lambda: dist.all_gather([torch.ones(3) for _ in range(n)], one)),
        ("all_gather_single size", f"expected {4 * n}",
         lambda: dist.all_gather_into_tensor(torch.ones(4 * n + 1), one)),
        ("reduce_scatter size", f"expected {4 * n}",
         lambda: dist.reduce_scatter_tensor(one, torch.ones(4 * n + 1))),
        ("shared outputs", "share memory",
         lambda: dist.all_gather([one] * n, torch.ones(4))),
        ("overlapping outputs", "outputs 0 and 1 share memory",
         lambda: dist.all_gather(windows(n), torch.ones(4))),
        ("expanded output", "overlaps itself",
         lambda: dist.broadcast(torch.ones(1).expand(4), (rank + 1) % n)),
        ("root", "root rank 99", lambda: group.broadcast(one, 99)),
        ("negative root", "root rank -1", lambda: group.reduce(one, -1)),
        ("uneven a2a", "does not divide equally across group size",
         lambda: dist.all_to_all_single(torch.ones(n + 1), torch.ones(n + 1))),
        ("split count", "Number of tensor splits not equal to group size",
         lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [4] + [0] * n, None)),
        ("split sum", "Split sizes doesn't match total dim 0 size",
         lambda: dist.all_to_all_single(torch.ones(4), torch.ones(4), [1] * n,
                                        [5] + [0] * (n - 1))),
        ("own piece", "must be equal",
         lambda: dist.all_to_all([torch.ones(2) for _ in range(n)],
                                 [torch.ones(3) for _ in range(n)])),
        ("peer", "peer 42", lambda: group.send([one], 42, 0)),
        ("tag", "tag must not be negative", lambda: group.recv([one], (rank + 1) % n, -3)),
        ("dtensor", "to_local",
         lambda: group.allreduce([DTensor.from_local(one, init_device_mesh("cpu", (n,)),
                                                     [Replicate()])])),
        ("premul without factor", "factor",
         lambda: group.allreduce([one], dist.ReduceOp.PREMUL_SUM)),
        ("split ranks", "distinct", lambda: group.split_group([0, 0])),
        ("split range", "rank 9 is not in the group", lambda: group.split_group([9])),
        ("end without start", "without _start_coalescing",
         lambda: group._end_coalescing(torch.device("cpu"))),
        ("scatter on others", "only the root",
         lambda: group.scatter([one], [[one] * n], (rank + 1) % n)),
    ]  # fmt: skip


def windows(n: int) -> list[torch.Tensor]:
    memory = torch.ones(4 + n)
    return [memory[i : i + 4] for i in range(n)]


def wrong(rank: int, n: int) -> None:
    for what, message, call in cases(rank, n):
        try:
            with pytest.raises((UsageError, ValueError), match=message):
                call()  # type: ignore[operator]
        except BaseException as error:
            raise AssertionError(f"{what}: {error!r}") from error
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert bool((tensor == n).all()), "the group must still work"


def test_every_mistake_is_named() -> None:
    run(2, wrong)


def outsider(rank: int, n: int) -> None:
    others = dist.new_group([0])
    tensor = torch.ones(2)
    if rank == 1:
        assert others == dist.GroupMember.NON_GROUP_MEMBER
        with pytest.warns(UserWarning, match="not belong"):
            assert dist.all_reduce(tensor, group=others) is None
    else:
        dist.all_reduce(tensor, group=others)
    assert bool((tensor == 1).all())


def test_a_group_without_the_caller() -> None:
    run(2, outsider)


def test_options_of_another_backend() -> None:
    with pytest.raises(UsageError, match="pg_options of type dict"):
        create(object(), {})
    assert GroupOptions().backend == "mccl"
