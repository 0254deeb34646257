"""A tuning file in real processes: it decides, and ranks that read different ones say so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from mccl.plans import Collective
from mccl.plans.choose import Rule
from mccl.plans.tuning import Entry, dump
from tests.process_group.ranks import RanksError, run

AR, BC = Collective.ALL_REDUCE, Collective.BROADCAST
GROUPS = ((0, 1), (2, 3))


def neighbours(rank: int, n: int, count: int) -> list[int]:
    """Whom this rank sends to in a right all-reduce of ``count`` elements."""
    tensor = torch.full((count,), float(rank))
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full_like(tensor, n * (n - 1) / 2))
    dist.broadcast(tensor, 0)
    sent = dist.group.WORLD._communicator._sending  # type: ignore[union-attr]
    return sorted({peer for peer, _ in sent})


@pytest.mark.timeout(120)
def test_the_file_decides(tmp_path: Path) -> None:
    """By default a megabyte runs a ring, and groups a ring of two levels."""
    file = tmp_path / "tuned.json"
    rules = {AR: (Rule("ring", max_bytes=64), Rule("direct")), BC: (Rule("chain"),)}
    file.write_text(dump([Entry(4, None, rules)], {}))
    settings = {"MCCL_TUNING": str(file)}
    assert run(4, neighbours, 1 << 18, env=settings)[0] == [1, 2, 3]
    assert run(4, neighbours, 16, env=settings)[0] == [1]
    # No table for these groups: two levels, as by default.
    grouped = settings | {"MCCL_GROUPS": "2"}
    assert run(4, neighbours, 1 << 18, env=grouped)[0] == [1, 2]


@pytest.mark.timeout(120)
def test_small_messages_in_groups_are_tuned_too(tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    file.write_text(dump([Entry(4, GROUPS, {AR: (Rule("ring"),), BC: (Rule("chain"),)})], {}))
    settings = {"MCCL_TUNING": str(file), "MCCL_GROUPS": "2"}
    assert run(4, neighbours, 16, env=settings)[0] == [1]


def with_own_file(rank: int, n: int, folder: str) -> None:
    import os

    os.environ["MCCL_TUNING"] = f"{folder}/{rank}.json"
    part = dist.new_group(list(range(n)))
    dist.all_reduce(torch.ones(4), group=part)


@pytest.mark.timeout(120)
def test_different_files_are_an_error_equal_texts_are_not(tmp_path: Path) -> None:
    texts = [dump([Entry(2, None, {AR: (Rule(name),)})], {}) for name in ("ring", "direct")]
    for name, second in (("same", texts[0]), ("other", texts[1])):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "0.json").write_text(texts[0])
        (folder / "1.json").write_text(second)
    run(2, with_own_file, str(tmp_path / "same"))
    with pytest.raises(RanksError, match=r"(?s)MCCL_TUNING differs.*copy one tuning file"):
        run(2, with_own_file, str(tmp_path / "other"))


def nothing(rank: int, n: int) -> None:
    """The group is made already."""


@pytest.mark.timeout(120)
def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tuned.json"
    file.write_text("{}")
    with pytest.raises(RanksError, match="mccl plan --tune of this version"):
        run(2, nothing, env={"MCCL_TUNING": str(file)})
