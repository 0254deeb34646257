"""A peer may connect, send all it has and leave before its connection reaches the engine."""

from __future__ import annotations

import socket

import numpy as np

from mccl.engine import Call, Channel, DType, NativeComm, NativePlan, Status
from mccl.plans import Collective, binomial

COUNT = 100
TIMEOUT_US = 30_000_000


def _comm(rank: int) -> NativeComm:
    return NativeComm(
        rank,
        2,
        epoch=1,
        name="late",
        peer_timeout_us=TIMEOUT_US,
        park_bytes=1 << 20,
        spin_us=0,
        yield_spin=True,
        checksum=False,
        record_capacity=8,
    )


def _broadcast(rank: int) -> Call:
    plan = NativePlan(binomial.broadcast(2, rank, COUNT, 1))
    return Call(plan, Collective.BROADCAST, DType.F32, None, DType.F32, 1, COUNT)


def test_a_goodbye_before_the_link_is_no_loss() -> None:
    near_control, far_control = socket.socketpair()
    near_data, far_data = socket.socketpair()
    near, far = _comm(0), _comm(1)
    near.add_link(1, Channel.CONTROL, [near_control.detach()])
    far.add_link(0, Channel.CONTROL, [far_control.detach()])
    far.add_link(0, Channel.COLLECTIVE_TX, [far_data.detach()])
    sent, got = np.arange(COUNT, dtype=np.float32), np.zeros(COUNT, np.float32)

    operation = near.submit(_broadcast(0), [got.ctypes.data], sync=False, timeout_us=TIMEOUT_US)
    assert operation is not None
    far.submit(_broadcast(1), [sent.ctypes.data], sync=True, timeout_us=TIMEOUT_US)
    far.destroy()  # says goodbye; the data is in the socket that nobody reads yet

    # Two rounds of the engine's checks: it must neither fail nor finish.
    assert operation.wait(1_200_000) is Status.WAIT_TIMEOUT
    near.add_link(1, Channel.COLLECTIVE_RX, [near_data.detach()])
    assert operation.wait() is Status.OK
    assert (got == sent).all()
    near.destroy()
