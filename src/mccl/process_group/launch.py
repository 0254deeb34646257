"""From a prepared call and tensors to a running operation.

The general path: any device, any memory layout, synchronous or not, profiled or not. The
shortcut for one contiguous CPU tensor is in ``group.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mccl.communicator import Communicator
from mccl.config import Config
from mccl.engine import DType, EngineBroken, NativeComm, Operation, Status
from mccl.errors import InternalError, MCCLError, UsageError
from mccl.handoff import Handoff, Lease, for_device
from mccl.observe.dump import broke
from mccl.observe.subjects import Subject
from mccl.process_group import profile
from mccl.process_group.calls import Prepared
from mccl.process_group.options import UNSET, microseconds
from mccl.process_group.work import CompletedWork, LeasedWork

DONE = CompletedWork()
"""What synchronous calls return; it holds nothing, so one serves all."""


class ClosedComm:
    """Stands where the native communicator was once the group is shut down."""

    def submit(self, *args: Any, **options: Any) -> Operation | None:
        """Raises EngineBroken."""
        raise EngineBroken(Status.BROKEN)

    def p2p(self, *args: Any, **options: Any) -> Operation | None:
        """Raises EngineBroken."""
        raise EngineBroken(Status.BROKEN)


class Launcher:
    """Issues operations of one group, in the order of the calls."""

    def __init__(
        self,
        communicator: Communicator,
        config: Config,
        timeout: timedelta,
        subject: Subject | None = None,
    ) -> None:
        self._communicator = communicator
        self._subject = subject
        self.stacks = None if subject is None else subject.stacks
        """Where callers' stacks are kept; None unless asked for."""
        self._config = config
        self._handoffs: dict[torch.device, Handoff] = {}
        self.native: NativeComm | ClosedComm = communicator.native
        self.coalescing: list[dist.Work] | None = None
        """Works issued since ``_start_coalescing``; None outside."""
        self.timeout_us = microseconds(timeout)
        self.sequence = 0
        """Collectives issued so far."""

    def failure(self, cause: Exception) -> Exception:
        """What the user should see for ``cause``, which the engine raised."""
        if not isinstance(cause, EngineBroken):
            return cause
        if cause.status is Status.FORKED:
            return UsageError(
                "this process group belongs to the parent process; make groups in the process "
                "that uses them (start workers by 'spawn', or fork before init_process_group)"
            )
        if cause.status is Status.INVALID:
            return InternalError(f"{cause}; please report this")
        error = self._communicator.error()
        broke(self._subject, error)
        return error

    def close(self) -> None:
        """No operation may reach the engine from here on."""
        self.native = ClosedComm()

    def limit(self, timeout: timedelta) -> int:
        """The time limit of a call in microseconds; unset means the group's."""
        return self.timeout_us if timeout == UNSET else microseconds(timeout)

    def connect(self, prepared: Prepared) -> None:
        """Have the links that the call needs."""
        self._ensure(prepared.send_peers, prepared.recv_peers)
        prepared.connected = True

    def connect_p2p(self, send_peers: frozenset[int], recv_peers: frozenset[int]) -> None:
        """Have the links for point-to-point messages to and from these peers."""
        self._ensure(send_peers, recv_peers, p2p=True)

    def _ensure(
        self, send_peers: frozenset[int], recv_peers: frozenset[int], p2p: bool = False
    ) -> None:
        try:
            self._communicator.ensure(send_peers, recv_peers, p2p)
        except MCCLError as error:
            broke(self._subject, error)
            raise

    def collective(
        self,
        name: str,
        prepared: Prepared,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        timeout: timedelta,
        asynchronous: bool,
        value: Any,
    ) -> dist.Work:
        """Issue one collective; ``value`` is what its work's future holds in the end.

        Inputs and outputs stand in the order of the plan's external buffers; a tensor that is
        both and one buffer is passed in both.
        """
        sync = not asynchronous and self.coalescing is None
        limit = self.limit(timeout)
        if not prepared.connected:
            self.connect(prepared)
        lease = self._lease(inputs, outputs)
        pointers = lease.pointers[: prepared.buffers]
        event = profile.Event(name, inputs or outputs) if profile.enabled() else None
        self.sequence += 1
        try:
            operation = self.native.submit(
                prepared.call,
                pointers,
                # On a GPU the stream waits (lease.wait), not this thread.
                sync=sync and lease.gate is None,
                timeout_us=limit,
                gate=lease.gate,
                tag=0 if self.stacks is None else self.stacks.collective(),
            )
            lease.issued(operation)
            if sync:
                lease.wait()
        except EngineBroken as broken:
            if event is not None:
                event.finish()
            raise self.failure(broken) from broken
        if sync:
            if event is not None:
                event.finish()
            return DONE
        return self._track(LeasedWork(lease, operation, value, name, self.failure, event))

    def barrier(self, prepared: Prepared, *, timeout: timedelta, asynchronous: bool) -> dist.Work:
        """Issue a barrier, which has no tensors."""
        return self.collective(
            "barrier",
            prepared,
            (),
            (),
            timeout=timeout,
            asynchronous=asynchronous,
            value=[],
        )

    def message(
        self, name: str, tensor: torch.Tensor, *, send: bool, peer: int, tag: int, dtype: DType
    ) -> dist.Work:
        """Issue one send or receive; ``peer`` -1 receives from anyone."""
        lease = self._lease([tensor] if send else [], [] if send else [tensor])
        event = profile.Event(name, [tensor]) if profile.enabled() else None
        if self.stacks is not None:
            self.stacks.message()
        try:
            operation = self.native.p2p(
                send=send,
                peer=peer,
                pointer=lease.pointers[0],
                nbytes=tensor.numel() * tensor.itemsize,
                tag=tag,
                dtype=dtype,
                sync=False,
                timeout_us=self.timeout_us,
                gate=lease.gate,
            )
            lease.issued(operation)
        except EngineBroken as broken:
            if event is not None:
                event.finish()
            raise self.failure(broken) from broken
        return self._track(LeasedWork(lease, operation, [tensor], name, self.failure, event))

    def _track(self, work: dist.Work) -> dist.Work:
        if self.coalescing is not None:
            self.coalescing.append(work)
        return work

    def _lease(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Lease:
        tensors = inputs or outputs
        device = tensors[0].device if tensors else torch.device("cpu")
        handoff = self._handoffs.get(device)
        if handoff is None:
            handoff = self._handoffs[device] = for_device(device, self._config)
        return handoff.lease(inputs, outputs, translate=self.failure)
