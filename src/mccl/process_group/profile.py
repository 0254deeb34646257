"""Profiler events named ``mccl:<operation>``, with the shapes of the tensors.

torch's own backends record an event that starts on the calling thread and ends elsewhere,
which the profiler shows as asynchronous. Here one helper thread ends events, and exists only
once a collective has run under a profiler. torch 2.11 drops events that end on another thread;
there an event covers the call alone and shows as synchronous.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

_autograd: Any = torch.autograd

enabled: Callable[[], bool] = _autograd._profiler_enabled
"""Whether a profiler records on this thread; cheap enough for every call."""

ENDS_ELSEWHERE = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether this torch keeps events that end on another thread."""

_executor: ThreadPoolExecutor | None = None


def _forget_executor() -> None:
    global _executor
    _executor = None


os.register_at_fork(after_in_child=_forget_executor)


class Event:
    """One recorded operation; ``finish`` may be called any number of times."""

    def __init__(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        self._handle: Any = _autograd._record_function_with_args_enter(f"mccl:{name}", *tensors)

    def issued(self) -> None:
        """The operation is under way; the calling thread is about to leave."""
        if not ENDS_ELSEWHERE:
            self.finish()

    def finish(self) -> None:
        """The operation is over."""
        global _executor
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if not ENDS_ELSEWHERE:
            _autograd._record_function_with_args_exit(handle)
            return
        if _executor is None:
            _executor = ThreadPoolExecutor(1, thread_name_prefix="mccl-profile")
        _executor.submit(_autograd._record_function_with_args_exit, handle).result()
