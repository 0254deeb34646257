"""The Python plans on the native engine, and what the door does with failures."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from mccl.engine import (
    Call,
    DType,
    EngineBroken,
    Failure,
    Gate,
    NativeError,
    NativePlan,
    Operation,
    RedOp,
    Status,
    library_path,
    reduce_supported,
    wait_completion,
    word_ticket,
)
from mccl.engine.runtime import NativeComm
from mccl.plans import Collective, Request, build
from mccl.plans.choose import BUILDERS
from mccl.plans.plan import Dep, DepKind, Plan, Region, Step, StepKind

from .world import TIMEOUT_US, make_comm, on_every_rank, world

pytestmark = [
    pytest.mark.skipif(
        not library_path().exists(), reason="the native library is not built (make native)"
    ),
    pytest.mark.timeout(120),
]


@pytest.fixture
def pair() -> Iterator[list[NativeComm]]:
    with world(2) as comms:
        yield comms


def all_reduce(rank: int, size: int, count: int, redop: RedOp = RedOp.SUM) -> Call:
    plan = build(Collective.ALL_REDUCE, "ring", size, rank, Request(count))
    return Call(
        NativePlan(plan), Collective.ALL_REDUCE, DType.F32, redop, DType.F32, -1, count, premul=2.0
    )


def started(comm: NativeComm, call: Call, data: np.ndarray, timeout_us: int) -> Operation:
    operation = comm.submit(call, [data.ctypes.data], sync=False, timeout_us=timeout_us)
    assert operation is not None
    return operation


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("count", [1, 7, 1009])
@pytest.mark.parametrize("algorithm", list(BUILDERS[Collective.ALL_REDUCE]))
def test_every_all_reduce_plan_runs(algorithm: str, count: int, size: int) -> None:
    groups = (tuple(range(size // 2)), tuple(range(size // 2, size)))
    request = Request(count, groups=groups)
    inputs = [np.arange(count, dtype=np.float32) * (r + 1) + 1 for r in range(size)]
    results = [data.copy() for data in inputs]
    with world(size) as comms:

        def run(rank: int) -> None:
            plan = NativePlan(build(Collective.ALL_REDUCE, algorithm, size, rank, request))
            call = Call(plan, Collective.ALL_REDUCE, DType.F32, RedOp.SUM, DType.F32, -1, count)
            pointers = [results[rank].ctypes.data]
            assert comms[rank].submit(call, pointers, sync=True, timeout_us=TIMEOUT_US) is None

        on_every_rank(size, run)
    for result in results:
        np.testing.assert_array_equal(result, sum(inputs))


def test_one_call_serves_many_submissions(pair: list[NativeComm]) -> None:
    data = [np.ones(100, dtype=np.float32) for _ in pair]
    calls = [all_reduce(rank, 2, 100) for rank in range(2)]
    operations = [
        started(pair[r], calls[r], data[r], TIMEOUT_US) for _ in range(10) for r in range(2)
    ]
    assert [operation.wait() for operation in operations] == [Status.OK] * 20
    assert [operation.info().sequence for operation in operations[::2]] == list(range(1, 11))
    assert all((part == 2.0**10).all() for part in data)
    record = pair[0].records(5)[-1]
    assert (record.sequence, record.state, record.count) == (10, 2, 100)
    assert pair[0].stats().operations == 10


def test_premul_scales_each_contribution(pair: list[NativeComm]) -> None:
    data = [np.full(10, rank + 1, dtype=np.float32) for rank in range(2)]
    calls = [all_reduce(rank, 2, 10, RedOp.PREMUL_SUM) for rank in range(2)]
    operations = [started(pair[r], calls[r], data[r], TIMEOUT_US) for r in range(2)]
    for operation in operations:
        operation.wait()
    assert (data[0] == 6).all()
    assert (data[1] == 6).all()


def test_gate_orders_engine_and_device(pair: list[NativeComm]) -> None:
    words = np.zeros(2, dtype=np.uint64)
    gate = Gate(word_ticket(words.ctypes.data), 1, word_ticket(words.ctypes.data + 8), 5)
    data = [np.zeros(10, dtype=np.float32), np.ones(10, dtype=np.float32)]
    first = pair[0].submit(
        all_reduce(0, 2, 10), [data[0].ctypes.data], sync=False, timeout_us=TIMEOUT_US, gate=gate
    )
    second = started(pair[1], all_reduce(1, 2, 10), data[1], TIMEOUT_US)
    assert first is not None
    assert first.wait(1000) is Status.WAIT_TIMEOUT
    assert words[1] == 0
    data[0][:] = 3
    words[0] = 1
    assert (first.wait(), second.wait()) == (Status.OK, Status.OK)
    assert words[1] == 5
    assert (data[0] == 4).all()


def test_messages_carry_bytes(pair: list[NativeComm]) -> None:
    out = ctypes.create_string_buffer(b"across", 6)
    into = ctypes.create_string_buffer(6)
    common = {"nbytes": 6, "tag": 2, "dtype": DType.U8, "sync": False, "timeout_us": TIMEOUT_US}
    receiving = pair[1].p2p(send=False, peer=-1, pointer=ctypes.addressof(into), **common)
    sending = pair[0].p2p(send=True, peer=1, pointer=ctypes.addressof(out), **common)
    assert receiving is not None
    assert sending is not None
    assert receiving.wait() is Status.OK
    assert receiving.info().source == 0
    assert sending.wait() is Status.OK
    assert into.raw == b"across"


def test_failure_is_told_and_kept(pair: list[NativeComm]) -> None:
    data = np.ones(10, dtype=np.float32)
    assert pair[0].error() is None
    waiting = started(pair[0], all_reduce(0, 2, 10), data, TIMEOUT_US)
    given = NativeError(Failure.INTERNAL, 1, 0, 0, 1, 5, "send", "é" * 500)
    pair[0].fail(given)
    with pytest.raises(EngineBroken) as caught:
        waiting.wait()
    assert caught.value.status is Status.BROKEN
    error = pair[0].error()
    assert error is not None
    assert (error.failure, error.culprit, error.phase) == (Failure.INTERNAL, 1, "send")
    assert error.message.startswith("é" * 380)
    with pytest.raises(EngineBroken):
        started(pair[0], all_reduce(0, 2, 10), data, TIMEOUT_US)


def test_synchronous_timeout_raises(pair: list[NativeComm]) -> None:
    data = np.ones(10, dtype=np.float32)
    with pytest.raises(EngineBroken):
        pair[0].submit(all_reduce(0, 2, 10), [data.ctypes.data], sync=True, timeout_us=300_000)
    error = pair[0].error()
    assert error is not None
    assert (error.failure, error.culprit) == (Failure.TIMEOUT, 1)


def test_signal_interrupts_a_synchronous_call(pair: list[NativeComm]) -> None:
    class InterruptedTestError(Exception):
        pass

    def handler(number: int, frame: object) -> None:
        raise InterruptedTestError

    data = np.ones(10, dtype=np.float32)
    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        while not pair[0].records(1):  # until the call is in the engine
            wait_completion(0, 1000)
        signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(InterruptedTestError):
            pair[0].submit(
                all_reduce(0, 2, 10), [data.ctypes.data], sync=True, timeout_us=TIMEOUT_US
            )
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
        pair[0].abort("interrupted")


def test_inconsistent_arguments_are_explained() -> None:
    step = Step(StepKind.SEND, 1, None, Region(0, 0, 5), (Dep(0, DepKind.FULL),))
    plan = Plan(Collective.BROADCAST, "made up", 2, 0, (step,), (5,))
    with pytest.raises(ValueError, match="made up plan: step 0 waits for step 0"):
        NativePlan(plan)
    comm = make_comm(0, 2)
    try:
        with pytest.raises(EngineBroken, match="rank 1 of 2"):
            comm.submit(all_reduce(1, 2, 10), [0], sync=True, timeout_us=1)
        with pytest.raises(EngineBroken, match="is NULL"):
            comm.submit(all_reduce(0, 2, 10), [0], sync=True, timeout_us=1)
    finally:
        comm.destroy()
    with pytest.raises(EngineBroken, match="destroyed"):
        comm.stats()


def test_supported_reductions() -> None:
    assert reduce_supported(DType.F32, RedOp.AVG)
    assert not reduce_supported(DType.F32, RedOp.BXOR)
