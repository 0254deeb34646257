"""Collectives inside a backward pass, and the futures DDP's reducer waits on there.

Theory of operation. The reducer waits in C++ when the graph is done, from a callback that
it queues after the collectives it follows. Callbacks run in queueing order on the backward
thread; so one that is queued by a collective completes its future before the reducer looks,
in the order of the calls on every rank, and what it raises ``backward()`` raises, with its
type (a Python future cannot carry an exception into C++).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Complete = Callable[["torch.futures.Future[Any]"], None]
"""Orders this thread behind the result, completes the future, raises what went wrong."""


def inside_backward() -> bool:
    """Whether this thread is running a node of a backward pass: its callbacks are to come."""
    return bool(torch._C._current_graph_task_id() != -1) and _running_node()


def ending_backward() -> bool:
    """Whether this thread runs the callbacks at the end of a backward pass.

    A collective issued there (by a communication hook that chains several, or by DDP's first
    step with a static graph) must complete its future before the callback returns: what waits
    on it may be queued already, and anything queued now would run after that.
    """
    return bool(torch._C._current_graph_task_id() != -1) and not _running_node()


def _running_node() -> bool:
    return torch._C._current_autograd_node() is not None


class BackwardFuture(torch.futures.Future[Any]):
    """A future that completes at the end of the backward pass, or when Python waits on it."""

    def __init__(self, complete: Complete) -> None:
        super().__init__()
        self._complete: Complete | None = complete

    def wait(self) -> Any:
        """Complete first: who waits before the end of the backward pass would wait for ever."""
        self.finish()
        return super().wait()

    def finish(self) -> None:
        """Complete unless that was done."""
        complete, self._complete = self._complete, None
        if complete is not None:
            complete(self)


def backward_future(complete: Complete) -> torch.futures.Future[Any]:
    """The future of a collective issued inside a backward pass or at its end."""
    future = BackwardFuture(complete)
    if ending_backward():
        future.finish()
    else:
        torch.autograd.Variable._execution_engine.queue_callback(future.finish)
    return future
