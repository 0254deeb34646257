"""Groups of the two-level ring: from settings to groups, and through real processes."""

from __future__ import annotations

import hashlib

import pytest
import torch
import torch.distributed as dist

from mccl.errors import UsageError
from mccl.process_group.grouping import Grouping, by_label
from tests.process_group.ranks import RanksError, run


def unused() -> list[str | None]:
    raise AssertionError("subnets are for auto alone")


def groups(setting: object, size: int = 6) -> object:
    return Grouping(setting, range(size)).get(unused)  # type: ignore[arg-type]


def test_off_and_sizes() -> None:
    assert groups("off") is None
    assert groups(3) == ((0, 1, 2), (3, 4, 5))
    assert groups(4) == ((0, 1, 2, 3), (4, 5))
    assert groups(6) is None
    assert groups(100) is None


def test_lists_are_global_ranks() -> None:
    setting = ((0, 2, 4), (1, 3, 5))
    assert groups(setting) == setting
    part = Grouping(setting, [5, 2, 4, 3])
    assert part.get(unused) == ((1, 2), (3, 0))
    assert Grouping(setting, [0, 4]).get(unused) is None


def test_lists_must_hold_every_member() -> None:
    with pytest.raises(UsageError, match=r"no group for ranks 3, 4.*MCCL|MCCL.*ranks 3, 4"):
        groups(((0, 1), (2, 5)))


def test_auto_reads_subnets_of_large_worlds_once() -> None:
    asked = []

    def subnets() -> list[str | None]:
        asked.append(1)
        return [f"10.0.{rank % 2}.0/24" for rank in range(16)]

    found = Grouping("auto", range(16))
    assert found.get(subnets) == (tuple(range(0, 16, 2)), tuple(range(1, 16, 2)))
    assert found.get(subnets) == found.get(subnets)
    assert len(asked) == 1
    assert groups("auto", 15) is None


@pytest.mark.parametrize("labels", [["a"] * 4, ["a", "a", "b", None], ["a", "a", "a", "b"]])
def test_labels_that_make_no_groups(labels: list[str | None]) -> None:
    assert by_label(labels) is None


# ---- through real processes ------------------------------------------------------------------


def digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.view(torch.uint8).numpy().tobytes()).hexdigest()


def reduce_random(rank: int, n: int) -> list[tuple[str, str]]:
    """(dtype, digest of the sum); each compared with the sum in float64."""
    found = []
    for count in (70_001, 200_003):
        inputs = [torch.randn(count, generator=torch.Generator().manual_seed(r)) for r in range(n)]
        for dtype, close in ((torch.float32, 1e-5), (torch.bfloat16, 0.1)):
            tensor = inputs[rank].to(dtype)
            for _ in range(2):
                result = tensor.clone()
                dist.all_reduce(result)
                found.append((f"{dtype} {count}", digest(result)))
            exact = sum(i.to(dtype).double() for i in inputs)
            torch.testing.assert_close(result.double(), exact, rtol=close, atol=10 * close)
    whole = torch.full((70_001,), float(rank))
    dist.all_reduce(whole, dist.ReduceOp.AVG)
    assert torch.equal(whole, torch.full_like(whole, (n - 1) / 2))
    sent = dist.group.WORLD._communicator._sending  # type: ignore[union-attr]
    return [*found, ("peers", str(sorted({peer for peer, _ in sent})))]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("world", "setting", "algorithm", "neighbours"),
    [
        (6, "3", "auto", "[1, 3]"),
        (5, "0,3;1,2,4", "auto", "[1, 2, 3]"),
        (5, "1,3,4;0,2", "two_level_doubling", "[2, 3]"),
    ],
)
def test_two_level_gives_every_rank_the_same_bits(
    world: int, setting: str, algorithm: str, neighbours: str
) -> None:
    """``neighbours``: whom rank 0 sends to, which a flat ring would not."""
    settings = {"MCCL_GROUPS": setting, "MCCL_ALGO": algorithm}
    ranks = run(world, reduce_random, env=settings, limit=90)
    results = [[pair for pair in rank if pair[0] != "peers"] for rank in ranks]
    assert all(rank == results[0] for rank in results)
    for first, second in zip(results[0][::2], results[0][1::2], strict=True):
        assert first == second
    assert dict(ranks[0])["peers"] == neighbours


def in_a_subgroup(rank: int, n: int) -> None:
    members = [3, 0, 2]
    part = dist.new_group(members)
    if rank in members:
        tensor = torch.full((70_001,), float(rank + 1))
        dist.all_reduce(tensor, group=part)
        assert torch.equal(tensor, torch.full_like(tensor, 4.0 + 1.0 + 3.0))
    dist.barrier()


@pytest.mark.timeout(120)
def test_groups_follow_ranks_into_subgroups() -> None:
    run(4, in_a_subgroup, env={"MCCL_GROUPS": "0-1;2-3"}, limit=90)


def start(rank: int, n: int) -> None:
    dist.all_reduce(torch.ones(1))


@pytest.mark.timeout(120)
def test_a_list_without_a_rank_is_refused() -> None:
    with pytest.raises(RanksError, match="names no group for rank 1"):
        run(2, start, env={"MCCL_GROUPS": "0;2-3"}, limit=60)
