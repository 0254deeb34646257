"""What a Work offers, sequence numbers, asynchronous bursts, profiler events."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.autograd.profiler import profile

from mccl.errors import CollectiveTimeoutError
from mccl.process_group.profile import ENDS_ELSEWHERE
from tests.process_group.ranks import run
from tests.process_group.values import combined, same, values


def work_object(rank: int, n: int) -> None:
    group = dist.group.WORLD
    tensor = torch.ones(1000)
    work = dist.all_reduce(tensor, async_op=True)
    future = work.get_future()
    chained = future.then(lambda done: done.value()[0].sum().item())
    assert work.wait(timedelta(seconds=20))
    assert chained.wait() == 1000.0 * n
    assert future.done()
    assert future.value()[0] is tensor
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    assert work.result()[0] is tensor
    assert work.get_future_result().wait() == 0
    work.synchronize()
    work.wait()
    late = dist.all_reduce(tensor, async_op=True)
    late.wait()
    assert late.get_future().wait()[0] is tensor
    outputs = [torch.zeros(2) for _ in range(n)]
    gathered = dist.all_gather(outputs, torch.full((2,), float(rank)), async_op=True)
    assert gathered.get_future().wait()[0] == outputs or gathered.get_future().value() == [outputs]
    assert len(gathered.result()) == n
    dist.all_reduce(torch.ones(3), async_op=True)  # dropped: must still run
    last = torch.ones(3)
    dist.all_reduce(last)
    assert bool((last == n).all())
    before = group._get_sequence_number_for_group()
    for _ in range(3):
        dist.all_reduce(tensor.fill_(1))
    assert group._get_sequence_number_for_group() == before + 3


def wait_timeout(rank: int, n: int) -> None:
    if rank == 0:
        target = torch.zeros(1)
        work = dist.irecv(target, 1)
        with pytest.raises(CollectiveTimeoutError, match="recv"):
            work.wait(timedelta(milliseconds=50))
        assert not work.is_completed()
        assert work.exception() is None
        dist.send(torch.zeros(1), 1)
        work.wait()
        assert float(target) == 5
    elif rank == 1:
        dist.recv(torch.zeros(1), 0)
        dist.send(torch.full((1,), 5.0), 0)


def burst(rank: int, n: int) -> None:
    tensors = [values(rank, (1 + 37 * i % 3000,), torch.float32, seed=i) for i in range(640)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in works:
        work.wait()
    for i, tensor in enumerate(tensors):
        shape = (1 + 37 * i % 3000,)
        expected = combined([values(r, shape, torch.float32, seed=i) for r in range(n)],
                            dist.ReduceOp.SUM)  # fmt: skip
        same(tensor, expected, i)


def profiled(rank: int, n: int) -> None:
    tensor = torch.ones(3, 4)
    with profile(record_shapes=True) as seen:
        dist.all_reduce(tensor)
        dist.all_reduce(tensor, async_op=True).wait()
        dist.broadcast(tensor, 0)
        if rank == 0:
            dist.send(tensor, 1)
        elif rank == 1:
            dist.recv(tensor, 0)
        dist.barrier()
    names = [event.name for event in seen.function_events]
    assert names.count("mccl:all_reduce") == 2
    assert names.count("mccl:broadcast") == 1
    assert names.count("mccl:barrier") == 1
    assert names.count(["mccl:send", "mccl:recv"][rank]) == 1
    for event in seen.function_events:
        if event.name in ("mccl:all_reduce", "mccl:broadcast"):
            assert event.input_shapes == [[3, 4]]
            assert event.is_async or not ENDS_ELSEWHERE


def all_of_them(rank: int, n: int) -> None:
    for case in (work_object, wait_timeout, burst, profiled):
        case(rank, n)


def test_work() -> None:
    run(2, all_of_them)


def test_burst_on_four_ranks() -> None:
    run(4, burst)
