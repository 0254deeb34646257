"""Profiler events named ``mccl:<operation>``, with the shapes of the tensors.

torch's own backends record an event that starts on the calling thread and ends elsewhere,
which the profiler shows as asynchronous. Here one helper thread ends events, and exists only
once a collective has run under a profiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

_autograd: Any = torch.autograd

enabled: Callable[[], bool] = _autograd._profiler_enabled
"""Whether a profiler records on this thread; cheap enough for every call."""

_executor: ThreadPoolExecutor | None = None


class Event:
    """One recorded operation; ``finish`` may be called any number of times."""

    def __init__(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        self._handle: Any = _autograd._record_function_with_args_enter(f"mccl:{name}", *tensors)

    def finish(self) -> None:
        """End the event, on the helper thread."""
        global _executor
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if _executor is None:
            _executor = ThreadPoolExecutor(1, thread_name_prefix="mccl-profile")
        _executor.submit(_autograd._record_function_with_args_exit, handle).result()
