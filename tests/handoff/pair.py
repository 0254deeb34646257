"""Two ranks joined by socket pairs, without rendezvous: what handoff tests run collectives on."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from mccl.engine import Call, Channel, DType, EngineBroken, NativeComm, NativePlan, Operation, RedOp
from mccl.handoff import Lease
from mccl.plans import Collective, ring

TIMEOUT_US = 60_000_000


def socket_pairs() -> tuple[list[socket.socket], list[socket.socket]]:
    """Ends for rank 0 and rank 1: collective out, collective in, control."""
    forth, back, control = (socket.socketpair() for _ in range(3))
    return [forth[0], back[0], control[0]], [back[1], forth[1], control[1]]


class Pair:
    """One rank's communicator of two."""

    def __init__(self, rank: int, fds: Sequence[int]) -> None:
        self.rank = rank
        self.comm = NativeComm(
            rank,
            2,
            epoch=1,
            name="pair",
            peer_timeout_us=TIMEOUT_US,
            park_bytes=1 << 20,
            spin_us=0,
            yield_spin=True,
            checksum=False,
            record_capacity=16,
        )
        channels = (Channel.COLLECTIVE_TX, Channel.COLLECTIVE_RX, Channel.CONTROL)
        for channel, fd in zip(channels, fds, strict=True):
            self.comm.add_link(1 - rank, channel, [fd])
        self._calls: dict[int, tuple[Call, int]] = {}
        self._last: Operation | None = None

    def all_reduce(self, lease: Lease, count: int) -> Operation | None:
        """Sum float32 over both ranks."""
        if count not in self._calls:
            plan = ring.all_reduce(2, self.rank, count)
            call = Call(
                NativePlan(plan),
                Collective.ALL_REDUCE,
                DType.F32,
                RedOp.SUM,
                wire_dtype=DType.F32,
                root=-1,
                count=count,
            )
            self._calls[count] = call, len(plan.external)
        call, externals = self._calls[count]
        self._last = self.comm.submit(
            call,
            lease.pointers[:externals],
            sync=False,
            timeout_us=TIMEOUT_US,
            gate=lease.gate,
        )
        return self._last

    def settle(self) -> None:
        """Wait for the newest operation, and so for all."""
        if self._last is not None:
            try:
                self._last.wait()
            except EngineBroken as broken:
                raise RuntimeError(f"the communicator broke: {self.comm.error()}") from broken

    def close(self) -> None:
        """Leave."""
        self._last = None
        self.comm.destroy()
