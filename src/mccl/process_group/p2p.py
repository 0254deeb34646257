"""Point-to-point: send and receive with tags, from one rank or from anyone."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mccl.errors import CollectiveTimeoutError
from mccl.process_group import validate
from mccl.process_group.dtypes import moved_as
from mccl.process_group.members import Members
from mccl.process_group.options import one
from mccl.process_group.work import CompletedWork

ANY_SOURCE = -1


class PointToPoint(Members):
    """The point-to-point part of the c10d interface. Every call is asynchronous."""

    _own_mail: OwnMail

    def send(self, tensors: Any, dst: int, tag: int = 0) -> dist.Work:
        """Send one tensor to group rank ``dst``."""
        tensor = validate.memory_of(one(tensors, "send"))
        peer = validate.peer(dst, self._size, "send")
        label = validate.tag(tag, "send")
        if peer == self._rank:
            return self._own_mail.send(tensor, label)
        self._connect_p2p(send_to=peer)
        return self._message("send", tensor, True, peer, label)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> dist.Work:
        """Receive one tensor from group rank ``src``."""
        tensor = validate.memory_of(one(tensors, "recv"))
        validate.disjoint([tensor], "recv")
        peer = validate.peer(src, self._size, "recv")
        label = validate.tag(tag, "recv")
        if peer == self._rank:
            return self._own_mail.receive(tensor, label, self._rank)
        self._connect_p2p(recv_from=frozenset({peer}))
        return self._message("recv", tensor, False, peer, label)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        """Receive one tensor from any other rank; the work's ``_source_rank()`` tells which."""
        tensor = validate.memory_of(one(tensors, "recv"))
        label = validate.tag(tag, "recv")
        self._connect_p2p(recv_from=frozenset(range(self._size)) - {self._rank})
        return self._message("recvAnySource", tensor, False, ANY_SOURCE, label)

    def _message(
        self, name: str, tensor: torch.Tensor, send: bool, peer: int, tag: int
    ) -> dist.Work:
        dtype = moved_as(tensor.dtype)
        return self._launcher.message(name, tensor, send=send, peer=peer, tag=tag, dtype=dtype)

    def _connect_p2p(
        self, *, send_to: int | None = None, recv_from: frozenset[int] = frozenset()
    ) -> None:
        send_peers = frozenset() if send_to is None else frozenset({send_to})
        self._launcher.connect_p2p(send_peers, recv_from)


class OwnMail:
    """Messages from a rank to itself, which c10d allows for isend and irecv."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: defaultdict[int, deque[torch.Tensor]] = defaultdict(deque)
        self._wanted: defaultdict[int, deque[OwnReceive]] = defaultdict(deque)

    def send(self, tensor: torch.Tensor, tag: int) -> dist.Work:
        """Hand the tensor's value to the oldest waiting receive, or keep a copy for the next."""
        with self._lock:
            if self._wanted[tag]:
                self._wanted[tag].popleft().deliver(tensor)
            else:
                self._sent[tag].append(tensor.detach().clone())
        return CompletedWork([tensor])

    def receive(self, tensor: torch.Tensor, tag: int, rank: int) -> dist.Work:
        """Take the oldest message with this tag, now or when it is sent."""
        work = OwnReceive(tensor, rank)
        with self._lock:
            if self._sent[tag]:
                work.deliver(self._sent[tag].popleft())
            else:
                self._wanted[tag].append(work)
        return work


class OwnReceive(CompletedWork):
    """A receive from the own rank; unlike its base it may have to wait."""

    def __init__(self, tensor: torch.Tensor, rank: int) -> None:
        super().__init__([tensor])
        self._tensor = tensor
        self._rank = rank
        self._delivered = threading.Event()
        self._future: torch.futures.Future[Any] = torch.futures.Future()

    def deliver(self, message: torch.Tensor) -> None:
        """Fill the tensor and complete."""
        validate.numel(self._tensor, message.numel(), "recv", "the tensor to fill")
        with torch.no_grad():
            self._tensor.copy_(message.reshape(self._tensor.shape))
        self._delivered.set()
        self._future.set_result([self._tensor])

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until this rank sent itself the message."""
        limit = timeout.total_seconds() if timeout else None
        if not self._delivered.wait(limit):
            raise CollectiveTimeoutError(
                f"recv: no message from this rank to itself within {limit:g} s; send it first",
                collective="recv",
                phase="wait",
                waited=limit,
            )
        return True

    def is_completed(self) -> bool:
        """Whether the message has been sent."""
        return self._delivered.is_set()

    def is_success(self) -> bool:
        """The same as ``is_completed()``."""
        return self.is_completed()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the received tensor."""
        return self._future

    def get_future_result(self) -> torch.futures.Future[Any]:
        """A future of c10d's ``WorkResult.SUCCESS``."""
        return self._future.then(lambda _: 0)

    def source_rank(self) -> int:
        """This rank."""
        return self._rank

    def _source_rank(self) -> int:
        return self._rank
