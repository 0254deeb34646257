"""``torch.distributed.Work``: what a caller holds while a collective runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from mccl.engine import EngineBroken, Operation
from mccl.errors import CollectiveTimeoutError, MCCLError
from mccl.handoff import Lease, WaitTimeout
from mccl.process_group.options import microseconds
from mccl.process_group.profile import Event

Failure = Callable[[Exception], Exception]
"""Turns what the engine raised into the error a user should see."""


def flatten(value: Any) -> list[torch.Tensor]:
    """The tensors of a (nested) list, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for item in value for tensor in flatten(item)]


def completed_future(value: Any) -> torch.futures.Future[Any]:
    """A future that holds ``value`` already."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return future


class CompletedWork(dist.Work):
    """A collective that was over when its call returned."""

    def __init__(self, value: Any = ()) -> None:
        super().__init__()
        self._value = value

    def wait(self, timeout: timedelta | None = None) -> bool:
        """True at once."""
        return True

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    def is_completed(self) -> bool:
        """True."""
        return True

    def is_success(self) -> bool:
        """True."""
        return True

    def exception(self) -> None:
        """None: a failed synchronous call raises instead of returning a work."""

    def result(self) -> list[torch.Tensor]:
        """The output tensors where the call kept them, else nothing."""
        return flatten(self._value)

    def get_future(self) -> torch.futures.Future[Any]:
        """A completed future."""
        return completed_future(list(self._value))

    def get_future_result(self) -> torch.futures.Future[Any]:
        """A completed future of 0, c10d's ``WorkResult.SUCCESS``."""
        return completed_future(0)


class LeasedWork(dist.Work):
    """A collective in flight. The lease holds its tensors whether or not this object lives."""

    def __init__(
        self,
        lease: Lease,
        operation: Operation | None,
        value: Any,
        name: str,
        failure: Failure,
        event: Event | None = None,
    ) -> None:
        super().__init__()
        self._lease = lease
        self._operation = operation
        self._value = value
        self._name = name
        self._failure = failure
        self._event = event
        self._future: torch.futures.Future[Any] | None = None
        if event is not None:
            event.issued()
            self.get_future().add_done_callback(lambda _: event.finish())

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Order what this thread does next behind the result; see ``Lease.wait``.

        A ``timeout`` of zero, c10d's default, is no limit beyond the operation's own. When the
        limit passes ``CollectiveTimeoutError`` is raised and the operation goes on. Raises the
        group's error when the group is broken.
        """
        limit = microseconds(timeout) if timeout else -1
        try:
            self._lease.wait(limit)
        except EngineBroken as broken:
            raise self._failure(broken) from None
        except WaitTimeout:
            raise CollectiveTimeoutError(
                f"{self._name}: wait() ended after its timeout of {limit / 1e6:g} s; the "
                "operation goes on: wait again, or give it more time",
                collective=self._name,
                phase="wait",
                waited=limit / 1e6,
            ) from None
        finally:
            if self._event is not None:
                self._event.finish()
        return True

    def synchronize(self) -> None:
        """The same as ``wait()``."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the operation is over, successfully or not. Never blocks."""
        return self._lease.is_completed()

    def is_success(self) -> bool:
        """Whether the operation is over and its result is good."""
        return self.is_completed() and self.exception() is None

    def exception(self) -> Exception | None:
        """What went wrong; None while the operation runs and when it succeeded."""
        cause = self._lease.failure()
        return None if cause is None else self._failure(cause)

    def result(self) -> list[torch.Tensor]:
        """The output tensors."""
        return flatten(self._value)

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the output tensors, in the nesting of the call."""
        if self._future is None:
            self._future = self._lease.future(self._value)
        return self._future

    def get_future_result(self) -> torch.futures.Future[Any]:
        """A future of c10d's ``WorkResult``: 0 success, 1 timeout, 2 communication error."""
        return self.get_future().then(_work_result)

    def source_rank(self) -> int:
        """Group rank of the sender of a completed receive."""
        if self._operation is None:
            return -1
        return self._operation.info().source

    def _source_rank(self) -> int:
        return self.source_rank()

    def sequence_number(self) -> int:
        """Number of the operation in its group, in issue order."""
        return 0 if self._operation is None else self._operation.info().sequence


class GroupedWork(dist.Work):
    """Several operations that are waited for as one."""

    def __init__(self, works: Sequence[dist.Work], value: Any) -> None:
        super().__init__()
        self._works = list(works)
        self._value = value

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all; ``timeout`` is for each."""
        for work in self._works:
            work.wait(timeout or timedelta(0))
        return True

    def synchronize(self) -> None:
        """The same as ``wait()``."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether all are over."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all are over and good."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Exception | None:
        """The first failure."""
        for work in self._works:
            error: Exception | None = work.exception()
            if error is not None:
                return error
        return None

    def result(self) -> list[torch.Tensor]:
        """The output tensors of all."""
        return flatten(self._value)

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the output tensors of all."""
        value = self._value
        futures = [work.get_future() for work in self._works]
        if not futures:
            return completed_future(value)

        def collected(done: torch.futures.Future[list[torch.futures.Future[Any]]]) -> Any:
            for future in done.wait():
                future.wait()
            return value

        return torch.futures.collect_all(futures).then(collected)

    def get_future_result(self) -> torch.futures.Future[Any]:
        """A future of c10d's ``WorkResult`` for all."""
        return self.get_future().then(_work_result)


def _work_result(future: torch.futures.Future[Any]) -> int:
    try:
        future.value()
    except CollectiveTimeoutError:
        return 1
    except MCCLError:
        return 2
    return 0
