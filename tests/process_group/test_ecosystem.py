"""What PyTorch builds on a process group: meshes, DTensor, FSDP2, checkpoints, objects."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import mccl
from mccl.errors import CollectiveTimeoutError, RemoteError
from tests.process_group.ranks import run


def objects(rank: int, n: int) -> None:
    everything: list[object] = [None] * n
    dist.all_gather_object(everything, {"rank": rank, "data": "x" * rank * 1000})
    assert [e["rank"] for e in everything] == list(range(n))  # type: ignore[index]
    said = [{"a": 1}, "two"] if rank == n - 1 else [None, None]
    dist.broadcast_object_list(said, src=n - 1)
    assert said == [{"a": 1}, "two"]
    gathered: list[object] | None = [None] * n if rank == 0 else None
    dist.gather_object((rank, rank), gathered, dst=0)
    if gathered is not None:
        assert gathered == [(r, r) for r in range(n)]
    got: list[object] = [None]
    dist.scatter_object_list(got, [f"for {r}" for r in range(n)] if rank == 0 else None, src=0)
    assert got == [f"for {rank}"]
    if rank == 0:
        dist.send_object_list(["hello", 5], dst=1)
    elif rank == 1:
        received: list[object] = [None, None]
        dist.recv_object_list(received, src=0)
        assert received == ["hello", 5]


def functional_collectives(rank: int, n: int) -> None:
    group = dist.group.WORLD
    summed = functional.all_reduce(torch.full((3,), float(rank)), "sum", group)
    assert bool((summed + 0 == sum(range(n))).all())
    gathered = functional.all_gather_tensor(torch.full((2, 2), float(rank)), 1, group)
    assert gathered.shape == (2, 2 * n)
    assert torch.equal((gathered + 0)[0, ::2], torch.arange(float(n)))
    scattered = functional.reduce_scatter_tensor(torch.ones(2 * n), "avg", 0, group)
    assert torch.equal(scattered + 0, torch.ones(2))
    exchanged = functional.all_to_all_single(
        torch.arange(float(n)) + 10 * rank, [1] * n, [1] * n, group
    )
    assert torch.equal(exchanged + 0, torch.arange(float(n)) * 10 + rank)
    broadcast = functional.broadcast(torch.full((2,), float(rank)), n - 1, group)
    assert bool((broadcast + 0 == n - 1).all())
    many = functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", group)
    assert all(bool((t + 0 == n).all()) for t in many)
    pending = functional.all_reduce(torch.ones(4), "sum", group)
    dist.all_reduce(pending)  # a pending result is finished before it is sent on
    weight = torch.ones(2, requires_grad=True)
    functional.all_reduce(weight * (rank + 1), "sum", group).sum().backward()
    assert weight.grad is not None


def dtensors(rank: int, n: int) -> None:
    mesh = init_device_mesh("cpu", (n,))
    whole = torch.arange(4.0 * n * n).reshape(2 * n, 2 * n)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.full_tensor(), whole)
    assert torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole)
    assert torch.equal(sharded.redistribute(mesh, [Replicate()]).to_local(), whole)
    partial = DTensor.from_local(torch.ones(n, 3), mesh, [Partial()])
    assert bool((partial.full_tensor() == n).all())
    assert torch.equal(
        partial.redistribute(mesh, [Shard(0)]).to_local(), torch.full((1, 3), n * 1.0)
    )
    product = sharded @ distribute_tensor(whole, mesh, [Replicate()])
    assert torch.equal(product.full_tensor(), whole @ whole)


def tensor_parallel(rank: int, n: int) -> None:
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(8, 4 * n), nn.ReLU(), nn.Linear(4 * n, 8))
    model = parallelize_module(
        copy.deepcopy(reference),
        init_device_mesh("cpu", (n,)),
        {"0": ColwiseParallel(), "2": RowwiseParallel()},
    )
    inputs = torch.randn(5, 8)
    torch.testing.assert_close(model(inputs), reference(inputs))


def meshes(rank: int, n: int) -> None:
    mesh = init_device_mesh("cpu", (2, n // 2), mesh_dim_names=("outer", "inner"))
    inner = torch.full((1,), float(rank))
    dist.all_reduce(inner, group=mesh["inner"].get_group())
    half = n // 2
    start = rank // half * half
    assert float(inner) == sum(range(start, start + half))
    outer = torch.full((1,), float(rank))
    dist.all_reduce(outer, group=mesh["outer"].get_group())
    assert float(outer) == sum(range(rank % half, n, half))


def make_model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(8, 33), nn.Tanh(), nn.Linear(33, 16), nn.Tanh(), nn.Linear(16, 3)
    )


def sharded_training(rank: int, n: int) -> None:
    reference, model = make_model().double(), make_model().double()
    mesh = init_device_mesh("cpu", (n,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (reference, model)]
    for step in range(4):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(n * 4, 8, generator=generator, dtype=torch.float64)
        for optimizer in optimizers:
            optimizer.zero_grad()
        reference(inputs).square().mean().backward()
        model(inputs[rank * 4 : rank * 4 + 4]).square().mean().backward()
        norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.5) for m in (reference, model)]
        whole = norms[1].full_tensor() if isinstance(norms[1], DTensor) else norms[1]
        torch.testing.assert_close(whole, norms[0])
        for optimizer in optimizers:
            optimizer.step()
    for theirs, mine in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.full_tensor(), theirs, rtol=1e-9, atol=1e-10)


def mixed_precision(rank: int, n: int) -> None:
    model = make_model()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mesh=init_device_mesh("cpu", (n,)), mp_policy=policy)
    if hasattr(model, "set_gradient_divide_factor"):
        model.set_gradient_divide_factor(2.0 * n)  # asks for PREMUL_SUM
    model(torch.ones(2, 8)).float().sum().backward()
    reference = make_model()
    (reference(torch.ones(2, 8)).sum() / 2).backward()
    for theirs, mine in zip(reference.parameters(), model.parameters(), strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.full_tensor(), theirs.grad, rtol=0.05, atol=0.02)


def checkpoints(rank: int, n: int, folder: str) -> None:
    mesh = init_device_mesh("cpu", (n,))
    model = make_model()
    fully_shard(model, mesh=mesh)
    saved = {name: value.full_tensor().clone() for name, value in model.state_dict().items()}
    checkpoint.save({"model": model.state_dict(), "step": 3}, checkpoint_id=folder)
    other = make_model()
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    fully_shard(other, mesh=mesh)
    state = {"model": other.state_dict(), "step": 0}
    checkpoint.load(state, checkpoint_id=folder)
    assert state["step"] == 3
    for name, value in other.state_dict().items():
        assert torch.equal(value.full_tensor(), saved[name]), name
    future = checkpoint.async_save({"model": model.state_dict()}, checkpoint_id=folder + "-async")
    future.result()


def groups(rank: int, n: int) -> None:
    pairs = [dist.new_group([r, (r + 1) % n]) for r in range(n)]
    for r, pair in enumerate(pairs):
        if rank in (r, (r + 1) % n):
            tensor = torch.full((2,), float(rank))
            dist.all_reduce(tensor, group=pair)
            assert bool((tensor == r + (r + 1) % n).all())
    many = [dist.new_group() for _ in range(24)]
    works = []
    for i, group in enumerate(many):
        tensor = torch.full((50,), float(i))
        works.append((dist.all_reduce(tensor, group=group, async_op=True), tensor, i))
    for work, tensor, i in works:
        work.wait()
        assert bool((tensor == i * n).all())
    for group in many[1:]:
        dist.destroy_process_group(group)
    odd, even = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])[1]
    mine = even if rank % 2 else odd
    assert dist.get_process_group_ranks(mine) == [rank % 2, rank % 2 + 2]
    tensor = torch.full((1,), float(rank))
    dist.broadcast(tensor, src=rank % 2 + 2, group=mine)
    assert float(tensor) == rank % 2 + 2
    split = dist.group.WORLD.split_group([3, 1], group_name="a split", group_desc="two of four")
    if rank in (1, 3):
        assert split.rank() == [3, 1].index(rank)
        assert split.size() == 2
        assert split.group_name == "a split"
        assert split.group_desc == "two of four"
        tensor = torch.full((1,), float(rank))
        split.allreduce([tensor]).wait()
        assert float(tensor) == 4
        split.shutdown()
    else:
        assert split is None


def recreated(rank: int, n: int) -> None:
    for i in range(3):
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert bool((tensor == n).all())
        store = dist.group.WORLD.get_group_store()
        fresh = dist.PrefixStore(f"again {i}", store)
        dist.destroy_process_group()
        dist.init_process_group("mccl", store=fresh, rank=rank, world_size=n)
    dist.barrier()


def identity(rank: int, n: int) -> None:
    group = dist.group.WORLD
    assert dist.get_backend() == "mccl"
    assert isinstance(group, mccl.ProcessGroupMCCL)
    assert group.name() == "mccl"
    assert group._get_backend_name() == "mccl"
    assert group.rank() == rank
    assert group.size() == n
    assert torch.device("cpu") in group._device_types
    assert dist.get_process_group_ranks(group) == list(range(n))
    assert group._get_backend(torch.device("cpu")) is group
    assert repr(group).startswith("ProcessGroupMCCL(")
    assert group.options.global_ranks_in_group == list(range(n))


def watched_barrier(rank: int, n: int) -> None:
    from datetime import timedelta

    mccl.monitored_barrier(timeout=timedelta(seconds=20))
    short = timedelta(milliseconds=300)
    if rank == 0:
        with pytest.raises(CollectiveTimeoutError, match=r"Ranks 1, 3 failed to pass"):
            mccl.monitored_barrier(timeout=short, wait_all_ranks=True)
    elif rank == 2:
        with pytest.raises(RemoteError, match="successfully reached monitoredBarrier"):
            mccl.monitored_barrier(timeout=timedelta(seconds=20))
    dist.barrier()
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert float(tensor) == n, "a failed monitored barrier leaves the group usable"


def everything(rank: int, n: int, folder: str) -> None:
    for case in (
        identity,
        objects,
        functional_collectives,
        dtensors,
        tensor_parallel,
        meshes,
        sharded_training,
        mixed_precision,
    ):
        case(rank, n)
    checkpoints(rank, n, folder)


def groups_and_barriers(rank: int, n: int) -> None:
    groups(rank, n)
    watched_barrier(rank, n)
    recreated(rank, n)


@pytest.mark.parametrize("world_size", [2, 4])
def test_pytorch_on_top(world_size: int, tmp_path: Path) -> None:
    run(world_size, everything, str(tmp_path / "checkpoint"), limit=100)


def test_groups() -> None:
    run(4, groups_and_barriers)
