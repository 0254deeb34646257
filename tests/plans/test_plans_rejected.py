"""Plans broken in every way a plan can be are rejected, and the message shows the steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
from plan_cases import plans_of

from mccl.plans import Collective, Dep, DepKind, Plan, Region, Request, Scratch, Step, StepKind
from mccl.plans.check import check
from mccl.plans.faults import PlanError

SUM_3 = Request(sizes=6)


def ring() -> list[Plan]:
    return plans_of(Collective.ALL_REDUCE, "ring", 3, SUM_3)


def doubling(world: int = 2) -> list[Plan]:
    return plans_of(Collective.ALL_REDUCE, "recursive_doubling", world, SUM_3)


def changed(plans: list[Plan], rank: int, number: int, **changes: object) -> list[Plan]:
    """``plans`` with some fields of one step replaced."""
    steps = list(plans[rank].steps)
    steps[number] = dataclasses.replace(steps[number], **changes)  # type: ignore[arg-type]
    return with_steps(plans, rank, steps)


def with_steps(plans: list[Plan], rank: int, steps: list[Step]) -> list[Plan]:
    copies = list(plans)
    copies[rank] = dataclasses.replace(plans[rank], steps=tuple(steps))
    return copies


def hand_made(*ranks: list[Step], count: int = 4, scratch: int = 4) -> list[Plan]:
    """Broadcast plans from rank 0 made of bare steps."""
    return [
        Plan(
            Collective.BROADCAST,
            "hand-made",
            len(ranks),
            rank,
            tuple(steps),
            (count,),
            (Scratch(scratch),),
            root=0,
        )
        for rank, steps in enumerate(ranks)
    ]


def shows(*parts: str) -> str:
    """A pattern for messages in which ``parts`` occur one after the other."""
    return "(?s)" + ".*".join(parts)


def whole(count: int = 4) -> Region:
    return Region(0, 0, count)


def spare(count: int = 4) -> Region:
    return Region(1, 0, count)


def test_the_plans_before_breaking_are_right() -> None:
    check(ring(), SUM_3)
    check(doubling(), SUM_3)


def test_missing_read_after_write_dependency() -> None:
    plans = ring()
    assert plans[1].steps[2].deps
    with pytest.raises(
        PlanError,
        match=shows(
            r"unordered conflict",
            r"rank 1 step 1: RECV_REDUCE from 0 with buffer 0 \[0:2\)",
            r"rank 1 step 2: SEND to 2",
        ),
    ):
        check(changed(plans, 1, 2, deps=()), SUM_3)


def test_missing_write_after_read_dependency() -> None:
    with pytest.raises(
        PlanError,
        match=shows(
            r"unordered conflict on elements \[0:6\) of buffer 0",
            r"rank 0 step 0: SEND to 1",
            r"rank 0 step 1: RECV_REDUCE from 1",
        ),
    ):
        check(changed(doubling(), 0, 1, deps=()), SUM_3)


def test_scratch_slot_used_again_too_early() -> None:
    request = Request(sizes=2)
    plans = plans_of(Collective.REDUCE_SCATTER, "ring", 5, request)
    number = next(
        i for i, s in enumerate(plans[0].steps) if s.kind is StepKind.RECV_REDUCE and s.deps
    )
    with pytest.raises(
        PlanError, match=rf"unordered conflict(?s:.*)rank 0 step {number}: RECV_RED"
    ):
        check(changed(plans, 0, number, deps=()), request)


def test_streaming_dependency_between_shifted_regions_orders_nothing() -> None:
    send = Step(StepKind.SEND, 1, None, Region(1, 0, 3))
    shifted = Step(StepKind.RECV, 1, Region(1, 1, 3), None, (Dep(0, DepKind.STREAM),))
    plans = hand_made([send, shifted], [])
    with pytest.raises(
        PlanError,
        match=shows(
            r"unordered conflict on elements \[1:3\)",
            r"step 0",
            r"step 1",
        ),
    ):
        check(plans, Request(sizes=4))


def test_wrong_order_on_a_connection() -> None:
    request = Request(sizes=2)
    plans = plans_of(Collective.SCATTER, "binomial", 4, request)
    steps = list(plans[0].steps)
    sends = [i for i, s in enumerate(steps) if s.kind is StepKind.SEND and s.peer == 2]
    steps[sends[0]], steps[sends[1]] = steps[sends[1]], steps[sends[0]]
    with pytest.raises(
        PlanError,
        match=shows(
            r"rank 2, buffer 0 \[0:2\): expected rank 0's buffer 0 from element 4, got ",
            r" element 6",
            r"rank 2 step 0: RECV from 0",
        ),
    ):
        check(with_steps(plans, 0, steps), request)


def test_missing_contribution() -> None:
    plans = ring()
    step = plans[2].steps[1]
    assert step.kind is StepKind.RECV_REDUCE
    with pytest.raises(
        PlanError,
        match=shows(
            r"rank 0, buffer 0 \[2:4\): the contribution of rank\(s\) \[2\] is missing",
            r"written by",
            r"rank 0 step",
        ),
    ):
        check(changed(plans, 2, 1, kind=StepKind.RECV, src=None), SUM_3)


def test_doubled_contribution() -> None:
    plans = doubling(4)
    steps = list(plans[3].steps)
    last = steps[-1]
    assert last.kind is StepKind.RECV_REDUCE
    again = Step(StepKind.REDUCE, -1, whole(6), whole(6), (Dep(1, DepKind.FULL),))
    moved = [
        dataclasses.replace(s, deps=tuple(Dep(d.step + (d.step > 1), d.kind) for d in s.deps))
        for s in steps[2:]
    ]
    moved[0] = dataclasses.replace(moved[0], deps=(Dep(2),))
    with pytest.raises(
        PlanError, match=r"contribution of rank\(s\) \[2, 3\] twice\n  rank 3 step 2"
    ):
        check(with_steps(plans, 3, [*steps[:2], again, *moved]), SUM_3)


def test_a_rank_added_twice_over_the_wire_names_both_ends() -> None:
    request = Request(sizes=3)
    plans = plans_of(Collective.REDUCE, "binomial", 3, request)
    root = list(plans[0].steps)
    root.insert(1, dataclasses.replace(root[0], src=root[0].dst, deps=(Dep(0),)))
    root[2] = dataclasses.replace(root[2], deps=(Dep(1),))
    leaf = [*plans[1].steps, *plans[1].steps]
    broken = with_steps(with_steps(plans, 0, root), 1, leaf)
    with pytest.raises(
        PlanError,
        match=shows(
            r"\[1\] twice",
            r"rank 0 step 1: RECV_REDUCE from 1",
            r"rank 1 step 1: SEND to 0",
        ),
    ):
        check(broken, request)


def test_cyclic_wait() -> None:
    def rank(right: int, left: int) -> list[Step]:
        return [
            Step(StepKind.RECV, left, spare(), None),
            Step(StepKind.SEND, right, None, spare(), (Dep(0, DepKind.STREAM),)),
        ]

    plans = hand_made(rank(1, 2), rank(2, 0), rank(0, 1))
    with pytest.raises(
        PlanError,
        match=shows(
            r"deadlock: 6 of 6 ",
            r"cyclic wait",
            r"rank 0 step 0: RECV from 2",
            r"waits for",
            r"rank 2 step 1: SEND to 0",
            r"waits for",
            r"rank 1 ",
        ),
    ):
        check(plans, Request(sizes=4))


def test_sends_in_an_order_that_blocks_without_buffering() -> None:
    """Each rank sends A then B; the other takes B only after it could take A, which waits."""
    a = Region(0, 0, 2)
    root = [
        Step(StepKind.SEND, 1, None, a),
        Step(StepKind.RECV, 1, Region(1, 0, 2), None, (Dep(0, DepKind.FULL),)),
    ]
    other = [
        Step(StepKind.SEND, 0, None, Region(1, 0, 2)),
        Step(StepKind.RECV, 0, a, None, (Dep(0, DepKind.FULL),)),
    ]
    with pytest.raises(
        PlanError,
        match=shows(
            r"cyclic wait",
            r"rank 0 step 1: RECV from 1 ",
            r"after FULL 0",
        ),
    ):
        check(hand_made(root, other), Request(sizes=4))


def test_a_reduction_may_not_hold_back_more_than_one_element() -> None:
    """Moved whole, these steps finish; element by element the holding place fills up."""
    plans = doubling()
    for rank in (0, 1):
        plans = changed(plans, rank, 1, deps=(Dep(0, DepKind.FULL),))
    with pytest.raises(PlanError, match="cyclic wait"):
        check(plans, SUM_3)


def test_sizes_that_do_not_match_on_a_connection() -> None:
    sender = [Step(StepKind.SEND, 1, None, whole())]
    receiver = [Step(StepKind.RECV, 0, whole(3))]
    with pytest.raises(
        PlanError,
        match=shows(
            r"connection 0 -> 1, message 0: 4 elements are sent but 3 expected",
            r"rank 0 step 0: SEND to 1",
            r"rank 1 step 0: RECV from 0",
        ),
    ):
        check(hand_made(sender, receiver), Request(sizes=4))


def test_a_send_nobody_receives() -> None:
    plans = ring()
    extra = Step(StepKind.SEND, 2, None, whole(6), (Dep(7, DepKind.FULL), Dep(6, DepKind.FULL)))
    with pytest.raises(
        PlanError,
        match=shows(
            r"connection 0 -> 2: 1 sends but 0 receives",
            r"rank 0 step 8",
        ),
    ):
        check(with_steps(plans, 0, [*plans[0].steps, extra]), SUM_3)


def test_a_barrier_that_forgets_a_round() -> None:
    plans = plans_of(Collective.BARRIER, "dissemination", 5, Request())
    cut = [dataclasses.replace(p, steps=p.steps[:4]) for p in plans]
    with pytest.raises(
        PlanError,
        match=shows(
            r"rank 0 leaves ",
            r" heard of rank\(s\) \[1\]",
            r"rank 0 step 3",
        ),
    ):
        check(cut, Request())


def test_different_operand_order_on_one_rank() -> None:
    plans = doubling()
    with pytest.raises(
        PlanError,
        match=shows(
            r"rank 1 combines ",
            r" another order than rank 0",
            r"rank 1 step 1: RECV_REDUCE",
        ),
    ):
        check(changed(plans, 1, 1, incoming_first=False), SUM_3)


STRUCTURE: list[tuple[str, Callable[[], list[Plan]], str]] = [
    (
        "out of bounds",
        lambda: changed(ring(), 1, 0, src=Region(0, 5, 2)),
        r"\[5:7\) is out of bounds of buffer 0, which has 6 elements\n  rank 1 step 0: SEND",
    ),
    (
        "no such buffer",
        lambda: changed(ring(), 1, 0, src=Region(4, 0, 2)),
        r"buffer 4 does not exist",
    ),
    (
        "unequal regions",
        lambda: changed(ring(), 1, 1, dst=Region(0, 0, 1)),
        r"equal counts, got 1 and 2\n  rank 1 step 1",
    ),
    (
        "dependency forwards",
        lambda: changed(ring(), 0, 2, deps=(Dep(3),)),
        r"step 2 depends on step 3, which is not earlier\n  rank 0 step 2",
    ),
    (
        "stream between unequal counts",
        lambda: changed(changed(ring(), 0, 2, src=Region(0, 4, 1)), 0, 2, deps=(Dep(1),)),
        shows(r"needs equal counts, these are 2 and 1", r"rank 0 step 1", r"rank 0 step 2"),
    ),
    ("peer itself", lambda: changed(ring(), 0, 0, peer=0), r"another rank .* 3\n  rank 0 step 0"),
    ("no such peer", lambda: changed(ring(), 0, 0, peer=3), r"another rank .* 3\n  rank 0 step 0"),
    (
        "local with peer",
        lambda: changed(plans_of(Collective.ALL_REDUCE, "ring", 1, SUM_3), 0, 0, peer=0),
        "peer -1",
    ),
    ("send into", lambda: changed(ring(), 0, 0, dst=whole(2)), r"SEND must name \(dst, src\)"),
    (
        "never final",
        lambda: changed(doubling(), 0, 1, final=False),
        "no step marks the result as fin",
    ),
    (
        "final too early",
        lambda: changed(ring(), 0, 1, final=True),
        r"final already\n  rank 1 step 3",
    ),
    (
        "wrong external size",
        lambda: [dataclasses.replace(p, external=(7,)) for p in ring()],
        r"rank 0: external buffers must have \(6,\) elements, the plan has \(7,\)",
    ),
    ("ranks out of order", lambda: ring()[::-1], "plan 0 of 3 is for rank 2 of 3"),
    (
        "two algorithms",
        lambda: [*ring()[:2], doubling(3)[2]],
        "rank 2 has ALL_REDUCE by recursive_doubling.* rank 0 has ALL_REDUCE by ring",
    ),
]


@pytest.mark.parametrize(
    ("plans", "message"), [c[1:] for c in STRUCTURE], ids=[c[0] for c in STRUCTURE]
)
def test_ill_formed(plans: Callable[[], list[Plan]], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        check(plans(), SUM_3)


def test_input_must_stay_as_it_is() -> None:
    request = Request(sizes=2)
    plans = plans_of(Collective.REDUCE_SCATTER, "ring", 3, request)
    with pytest.raises(PlanError, match=r"writes buffer 0, an input\n  rank 1 step 1: RECV_REDUCE"):
        check(changed(plans, 1, 1, dst=Region(0, 0, 2)), request)


def test_result_that_is_never_written() -> None:
    plans = hand_made([], [])
    with pytest.raises(PlanError, match=r"rank 1, buffer 0 \[0:4\): the result is never written"):
        check(plans, Request(sizes=4))


def test_reading_what_nothing_wrote() -> None:
    plans = hand_made([Step(StepKind.SEND, 1, None, spare())], [Step(StepKind.RECV, 0, whole())])
    with pytest.raises(
        PlanError, match=r"nothing has written\n  rank 0 step 0: SEND to 1 of scratch 0"
    ):
        check(plans, Request(sizes=4))


def test_accumulators_do_not_travel() -> None:
    plans = hand_made([Step(StepKind.SEND, 1, None, spare())], [Step(StepKind.RECV, 0, whole())])
    wide = [dataclasses.replace(p, scratch=(Scratch(4, accumulate=True),)) for p in plans]
    with pytest.raises(PlanError, match="accumulator must not be sent"):
        check(wide, Request(sizes=4))
