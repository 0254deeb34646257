"""Exact-answer data: any order of reduction gives the same bits, and faults show."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mccl.bench import exact
from mccl.errors import UsageError

COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "product": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}


@pytest.mark.parametrize("redop", exact.REDOPS)
@pytest.mark.parametrize("name", exact.DTYPES)
@pytest.mark.parametrize("world", [1, 2, 3, 8, 24])
def test_reduction_in_any_order_is_the_expected_block(name: str, redop: str, world: int) -> None:
    dtype = exact.DTYPES[name]
    blocks = [exact.rank_block(3, rank, world, dtype, redop) for rank in range(world)]
    forward = blocks[0].clone()
    for block in blocks[1:]:
        forward = COMBINE[redop](forward, block)
    backward = blocks[-1].clone()
    for block in reversed(blocks[:-1]):
        backward = COMBINE[redop](block, backward)
    tree = blocks
    while len(tree) > 1:
        odd = tree[len(tree) // 2 * 2 :]
        tree = [COMBINE[redop](*pair) for pair in zip(tree[::2], tree[1::2], strict=False)] + odd
    expected = exact.reduced_block(3, world, dtype, redop)
    for result in (forward, backward, tree[0]):
        if redop == "avg":
            whole = not dtype.is_floating_point
            result = result.div(world, rounding_mode="trunc" if whole else None)
        assert result.dtype == dtype
        assert torch.equal(result, expected)


def test_blocks_differ_between_ranks_and_seeds() -> None:
    first = exact.rank_block(1, 0, 4, torch.float32)
    assert not torch.equal(first, exact.rank_block(1, 1, 4, torch.float32))
    assert not torch.equal(first, exact.rank_block(2, 0, 4, torch.float32))
    assert first.unique().numel() > 1000


@pytest.mark.parametrize(
    "count", [0, 1, 1000, exact.PERIOD, exact.PERIOD + 1, 3 * exact.PERIOD + 7]
)
@pytest.mark.parametrize("start", [0, 5, exact.PERIOD - 1, exact.PERIOD + 3])
def test_fill_and_count_agree(count: int, start: int) -> None:
    block = exact.rank_block(1, 0, 2, torch.float32)
    tensor = torch.full((count,), -1.0)
    exact.fill(tensor, block, start)
    assert exact.count_wrong(tensor, block, start) == 0
    positions = sorted({0, count // 2, count - 1}) if count else []
    for position in positions:
        tensor[position] += 1
    assert exact.count_wrong(tensor, block, start) == len(positions)


def test_a_chunk_in_the_wrong_place_is_seen() -> None:
    block = exact.rank_block(1, 0, 2, torch.float32)
    tensor = torch.empty(4 * exact.PERIOD)
    exact.fill(tensor, block)
    moved = tensor.clone()
    moved[:65536] = tensor[65536:131072]
    assert exact.count_wrong(moved, block) > 60000


def test_a_dtype_too_small_for_the_world_is_named() -> None:
    with pytest.raises(UsageError, match="int8"):
        exact.rank_block(1, 0, 500, torch.int8)
