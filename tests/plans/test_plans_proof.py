"""Every algorithm is proven for every world size from 1 to 64 and awkward counts."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator

import pytest
from plan_cases import ALL, VECTOR, awkward_counts, list_forms, plans_of, ragged, switches

from mccl.plans import Collective, Request
from mccl.plans.check import check
from mccl.plans.emit import split

WORLDS = range(1, 65)
ROOTED = (Collective.BROADCAST, Collective.REDUCE, Collective.GATHER, Collective.SCATTER)


def _id(value: object) -> str:
    return value.name.lower() if isinstance(value, Collective) else str(value)


@pytest.fixture(autouse=True)
def _without_cycle_collector() -> Iterator[None]:
    """Proofs make millions of small objects and no cycles; looking for some takes a third
    of the time."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _requests(collective: Collective, world: int) -> Iterator[Request]:
    """Awkward payloads. Where each rank has its piece, the payload is split over the ranks
    (some get one element more, some none); equal pieces of one element cover any other
    size, as the plan is the same but for the numbers. Worlds over 32 of those collectives
    take turns at the payloads around the world size."""
    if collective is Collective.BARRIER:
        yield Request()
        return
    roots = {0, world // 2, world - 1} if collective in ROOTED else {0}
    for root in roots:
        payloads = awkward_counts(world)
        if collective not in VECTOR:
            groups = switches(world)
            yield from (Request(sizes=count, root=root, groups=groups) for count in payloads)
            continue
        if world > 32 and collective not in ROOTED:
            payloads = [0, 1, payloads[2 + world % (len(payloads) - 2)]]
        if collective is not Collective.ALL_TO_ALL:
            yield from (Request(sizes=split(count, world), root=root) for count in payloads)
        yield Request(sizes=1, root=root)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("collective", "algorithm"), ALL, ids=_id)
def test_every_world_and_awkward_counts(collective: Collective, algorithm: str) -> None:
    for world in WORLDS:
        for request in _requests(collective, world):
            check(plans_of(collective, algorithm, world, request), request)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("collective", "algorithm"), ALL, ids=_id)
def test_lists_of_tensors(collective: Collective, algorithm: str) -> None:
    for form in list_forms(collective):
        for world in [*range(1, 20), 33, 64]:
            request = Request(sizes=3, root=world - 1, **form)
            check(plans_of(collective, algorithm, world, request), request)


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("collective", "algorithm"), ALL, ids=_id)
def test_random_uneven_sizes(collective: Collective, algorithm: str) -> None:
    rng = random.Random(f"{collective.name} {algorithm}")
    for world in [*range(1, 20), 31, 48]:
        for _ in range(3):
            requests = ragged(collective, world, rng)
            check(plans_of(collective, algorithm, world, requests), requests)


def test_large_payloads_prove_as_fast_as_small_ones() -> None:
    request = Request(sizes=2**31 + 7)
    check(plans_of(Collective.ALL_REDUCE, "ring", 16, request), request)
    check(plans_of(Collective.REDUCE, "chain", 16, request), request)
