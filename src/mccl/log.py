"""Logging: the ``mccl`` logger, its level from the configuration, its rank in front."""

from __future__ import annotations

import logging
import sys

from mccl.config import Config, Launch


class _Prefix(logging.Formatter):
    """``[mccl 3] WARNING communicator: text``; the number is the global rank where known."""

    def __init__(self, rank: int | None) -> None:
        super().__init__()
        self._tag = "mccl" if rank is None else f"mccl {rank}"

    def format(self, record: logging.LogRecord) -> str:
        room = record.name.removeprefix("mccl.")
        text = f"[{self._tag}] {record.levelname} {room}: {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def setup(config: Config, *, rank: int | None = None) -> None:
    """Send ``mccl`` log records to stderr at the configured level; calling again replaces it.

    An application that has put its own handler on the ``mccl`` or the root logger keeps it: only
    the level is set then.
    """
    logger = logging.getLogger("mccl")
    logger.setLevel(config.log_level)
    for handler in [h for h in logger.handlers if isinstance(h.formatter, _Prefix)]:
        logger.removeHandler(handler)
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Prefix(Launch.from_env().rank if rank is None else rank))
    logger.addHandler(handler)
    logger.propagate = False
