"""Writing the flight record: when asked, when a group breaks, and on SIGUSR1.

Theory of operation. One daemon thread writes, so that a signal handler only has to wake it (a
``SimpleQueue`` may be used inside one) and a disk that hangs delays a failing rank by at most
``PATIENCE`` seconds. It exists only where MCCL_DUMP_DIR is set. The signal handler runs in the
main thread between two bytecodes; the engine returns there every 200 ms while it waits.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from mccl.communicator import Communicator
from mccl.config import Config
from mccl.errors import UsageError
from mccl.observe.prometheus import ensure_served
from mccl.observe.record import flight_record
from mccl.observe.subjects import Named, Subject, add

logger = logging.getLogger("mccl.observe")

PREFIX = "mccl_trace_rank_"
"""A dump's name is this and the global rank, as ``torchfrtrace`` expects."""

PATIENCE = 5.0
"""Seconds that a failing rank waits for its dump to be written."""

_Job = tuple[Path, str, threading.Event | None]


def watch(communicator: Communicator, named: Named) -> Subject:
    """Observe a new group; arranges for SIGUSR1 where MCCL_DUMP_DIR is set, and for metrics.

    Raises UsageError where MCCL_METRICS_PORT is set and prometheus_client is missing.
    """
    subject = Subject(communicator, named)
    add(subject)
    ensure_served(communicator.config)
    if communicator.config.dump_dir is not None:
        _listen(communicator.config.dump_dir)
    return subject


def dump_flight_recorder(path: str | os.PathLike[str] | None = None) -> Path | None:
    """Write the flight record of every group of this process; returns the file.

    ``path`` is a file, or a folder in which the file is named after the rank; default:
    MCCL_DUMP_DIR. The file is a pickle that ``torchfrtrace`` and ``mccl explain`` read. A full
    disk or a folder that cannot be written is logged and returns None. Raises UsageError when
    there is neither a path nor MCCL_DUMP_DIR.
    """
    if path is not None and not Path(path).is_dir():
        return _write(Path(path), "asked for")
    folder = Config.from_env().dump_dir if path is None else Path(path)
    if folder is None:
        raise UsageError(
            "dump_flight_recorder: there is no place to write to; pass a file or folder, or set "
            "MCCL_DUMP_DIR"
        )
    return _write(folder, "asked for", name=True)


def broke(subject: Subject | None, error: Exception) -> None:
    """A group broke: write its record, once, where MCCL_DUMP_DIR says so."""
    if subject is None or subject.reported:
        return
    folder = subject.communicator.config.dump_dir
    if folder is None or subject.communicator.inspect(lambda native: native.error()) is None:
        return
    subject.reported = True
    written = threading.Event()
    _writer.put((folder, f"{type(error).__name__}: {error}", written))
    if not written.wait(PATIENCE):
        logger.warning("the flight record is still being written to %s after %g s; going on",
                       folder, PATIENCE)  # fmt: skip


def _write(target: Path, reason: str, *, name: bool = False) -> Path | None:
    record = flight_record(reason)
    rank = record["rank"] or 0
    if name:
        target = target / f"{PREFIX}{rank}"
        if not record["pg_config"] and target.exists():
            logger.info("no group exists any more; %s is kept as it is", target)
            return target
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(pickle.dumps(record, protocol=4))
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        logger.error("the flight record cannot be written to %s: %s; training is not affected. "
                     "Free space, or set MCCL_DUMP_DIR to a folder this user may write.",
                     target, error)  # fmt: skip
        return None
    logger.info("wrote the flight record of rank %s to %s (%s)", rank, target, reason)
    return target


class _Writer:
    """The thread that writes; started by its first job."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running = False

    def start(self) -> None:
        """Have the thread."""
        with self._lock:
            if not self._running:
                self._running = True
                threading.Thread(target=self._run, name="mccl-recorder", daemon=True).start()

    def put(self, job: _Job) -> None:
        """Write soon."""
        self.start()
        self._jobs.put(job)

    def wake(self, job: _Job) -> None:
        """The same from a signal handler, which must take no lock; needs ``start`` before."""
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            folder, reason, written = self._jobs.get()
            try:
                _write(folder, reason, name=True)
            except Exception:
                # A record that cannot be made must not end the thread that makes the next one.
                logger.exception("the flight record cannot be made; please report this")
            finally:
                if written is not None:
                    written.set()


_writer = _Writer()
_listening: list[Path] = []
"""The folder for SIGUSR1, once the handler is installed."""


def _listen(folder: Path) -> None:
    _writer.start()
    if _listening:
        _listening[0] = folder
        return
    if not hasattr(signal, "SIGUSR1") or threading.current_thread() is not threading.main_thread():
        return
    before = signal.getsignal(signal.SIGUSR1)
    if before is None:
        logger.warning("SIGUSR1 has a handler that Python did not set; it writes no flight record")
        return
    _listening.append(folder)
    signal.signal(signal.SIGUSR1, _handler(before))


def _handler(before: Callable[[int, FrameType | None], Any] | int) -> Callable[..., None]:
    def handle(number: int, frame: FrameType | None) -> None:
        _writer.wake((_listening[0], "SIGUSR1", None))
        if callable(before):
            before(number, frame)

    return handle


def _after_fork() -> None:
    global _writer
    _writer = _Writer()


os.register_at_fork(after_in_child=_after_fork)
