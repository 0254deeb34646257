"""The listener that all groups of a process share; it lives while a group does.

``acquire`` and ``release`` count its users. A forked child starts without one, and does not
keep the parent's ports open.
"""

from __future__ import annotations

import atexit
import os
import threading

from mccl.communicator.listener import Listener

_process_lock = threading.Lock()
_process_listener: Listener | None = None
_users = 0


def acquire(*, port: int, bufsize: int | None) -> Listener:
    """This process's listener, made on first need (``port`` and ``bufsize`` count then).

    Every call is paired with one of ``release``.
    """
    global _process_listener, _users
    with _process_lock:
        if _process_listener is None:
            _process_listener = Listener(port=port, bufsize=bufsize)
            _users = 0
        _users += 1
        return _process_listener


def release(listener: Listener) -> None:
    """Gives the listener back; the last one to do so closes it."""
    global _process_listener, _users
    with _process_lock:
        if _process_listener is not listener:
            return  # a forked child, or after exit began
        _users -= 1
        if _users > 0:
            return
        _process_listener = None
    listener.close()


def _close_at_exit() -> None:
    listener = _process_listener
    if listener is not None:
        listener.close()


def _forget_in_child() -> None:
    global _process_listener, _process_lock
    _process_lock = threading.Lock()
    if _process_listener is not None:
        _process_listener.abandon()
        _process_listener = None


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_forget_in_child)
