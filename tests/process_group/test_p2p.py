"""Send and receive: tags, any source, batches, self, every dtype and layout."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.process_group.ranks import run
from tests.process_group.values import LARGE, MOVED, layouts, same, values


def neighbours(rank: int, n: int) -> None:
    right, left = (rank + 1) % n, (rank - 1) % n
    for dtype in MOVED:
        for shape in ((), (0,), (3, 5), LARGE):
            for name, tensor in layouts(values(rank, shape, dtype)):
                target = dict(layouts(torch.zeros(shape, dtype=dtype)))[name]
                works = [dist.isend(tensor, right), dist.irecv(target, left)]
                for work in works:
                    work.wait()
                same(target, values(left, shape, dtype), (dtype, shape, name))


def blocking(rank: int, n: int) -> None:
    for i in range(20):
        tensor = values(rank, (i * 50,), torch.float32, seed=i)
        if rank == 0:
            dist.send(tensor, 1)
            dist.recv(tensor, n - 1)
            same(tensor, values(0, (i * 50,), torch.float32, seed=i), i)
        else:
            received = torch.zeros(i * 50)
            assert dist.recv(received, rank - 1) == rank - 1
            dist.send(received, (rank + 1) % n)


def tags(rank: int, n: int) -> None:
    if rank == 0:
        works = [dist.isend(torch.full((4,), float(tag)), 1, tag=tag) for tag in range(8)]
        works += [dist.isend(torch.full((4,), 10.0 + i), 1, tag=3) for i in range(3)]
        for work in works:
            work.wait()
    elif rank == 1:
        received = {}
        for tag in reversed(range(8)):
            received[tag] = torch.zeros(4)
            dist.recv(received[tag], 0, tag=tag)
        assert {tag: float(t[0]) for tag, t in received.items()} == {t: float(t) for t in range(8)}
        for i in range(3):  # one tag: in the order of sending
            dist.recv(received[0], 0, tag=3)
            assert bool((received[0] == 10.0 + i).all())


def any_source(rank: int, n: int) -> None:
    rounds = 5
    if rank == 0:
        senders = []
        for _ in range(rounds * (n - 1)):
            tensor = torch.zeros(3)
            source = dist.recv(tensor)
            assert bool((tensor == source).all())
            senders.append(source)
        assert sorted(senders) == sorted(list(range(1, n)) * rounds)
        tensor = torch.zeros(1)
        work = dist.irecv(tensor, tag=9)
        work.wait()
        assert work._source_rank() == int(tensor)
    else:
        for _ in range(rounds):
            dist.send(torch.full((3,), float(rank)), 0)
        if rank == n - 1:
            dist.send(torch.full((1,), float(rank)), 0, tag=9)


def to_self(rank: int, n: int) -> None:
    received = torch.zeros(4)
    waiting = dist.irecv(received, rank)
    assert not waiting.is_completed()
    dist.isend(torch.arange(4.0) + rank, rank).wait()
    waiting.wait()
    same(received, torch.arange(4.0) + rank, "recv first")
    dist.isend(torch.ones(4), rank, tag=1).wait()
    dist.isend(torch.ones(4) * 2, rank, tag=2).wait()
    dist.irecv(received, rank, tag=2).wait()
    assert bool((received == 2).all())
    dist.irecv(received, rank, tag=1).wait()
    assert bool((received == 1).all())


def mixed_with_collectives(rank: int, n: int) -> None:
    right, left = (rank + 1) % n, (rank - 1) % n
    works, checks = [], []
    for i in range(30):
        summed = torch.full((100 + i,), float(rank + i))
        received = torch.zeros(5000)
        works.append(dist.all_reduce(summed, async_op=True))
        works.append(dist.isend(torch.full((5000,), float(rank * 100 + i)), right, tag=i))
        works.append(dist.irecv(received, left, tag=i))
        checks.append((summed, received))
    for work in works:
        work.wait()
    for i, (summed, received) in enumerate(checks):
        assert bool((summed == sum(range(n)) + n * i).all())
        assert bool((received == left * 100 + i).all())


@pytest.mark.parametrize("world_size", [2, 3])
def test_neighbours(world_size: int) -> None:
    run(world_size, neighbours)


def everything(rank: int, n: int) -> None:
    for case in (blocking, tags, any_source, to_self, mixed_with_collectives, batched):
        case(rank, n)
        dist.barrier()


def batched(rank: int, n: int) -> None:
    for order in (1, -1):
        outgoing = [values(rank, (r + 1, 4), torch.float32, seed=r) for r in range(n)]
        incoming = [torch.zeros(rank + 1, 4) for _ in range(n)]
        operations = []
        for peer in range(n):
            if peer != rank:
                operations.append(dist.P2POp(dist.irecv, incoming[peer], peer))
                operations.append(dist.P2POp(dist.isend, outgoing[peer], peer))
        for work in dist.batch_isend_irecv(operations[::order]):
            work.wait()
        for peer in range(n):
            if peer != rank:
                expected = values(peer, (rank + 1, 4), torch.float32, seed=rank)
                same(incoming[peer], expected, peer)
    received = torch.zeros(6)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.irecv(received, (rank - 1) % n)
        dist.isend(torch.full((6,), float(rank)), (rank + 1) % n)
    manager.wait()
    assert bool((received == (rank - 1) % n).all())


@pytest.mark.parametrize("world_size", [2, 4])
def test_messages(world_size: int) -> None:
    run(world_size, everything)
