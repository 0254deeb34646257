"""MCCL: a ``torch.distributed`` backend for machines joined by ordinary Ethernet.

Importing the package makes ``backend="mccl"`` known. Where the package is installed, ``import
torch`` does the same through an entry point, so a training script needs no import of its own.
The names below are looked up on first use, so that tools which need no torch stay light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mccl import _autoload

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mccl.advice import suggest_bucket_cap_mb as suggest_bucket_cap_mb
    from mccl.config import Config as Config
    from mccl.observe.dump import dump_flight_recorder as dump_flight_recorder
    from mccl.observe.metrics import metrics as metrics
    from mccl.observe.metrics import reset_metrics as reset_metrics
    from mccl.observe.trace import export_trace as export_trace
    from mccl.process_group import ProcessGroupMCCL as ProcessGroupMCCL
    from mccl.process_group import monitored_barrier as monitored_barrier

_EXPORTS = {
    "Config": "mccl.config",
    "ProcessGroupMCCL": "mccl.process_group",
    "dump_flight_recorder": "mccl.observe.dump",
    "export_trace": "mccl.observe.trace",
    "metrics": "mccl.observe.metrics",
    "monitored_barrier": "mccl.process_group",
    "reset_metrics": "mccl.observe.metrics",
    "suggest_bucket_cap_mb": "mccl.advice",
}

__all__ = [
    "Config",
    "ProcessGroupMCCL",
    "__version__",
    "dump_flight_recorder",
    "export_trace",
    "metrics",
    "monitored_barrier",
    "reset_metrics",
    "suggest_bucket_cap_mb",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'mccl' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


_autoload.on_import()
