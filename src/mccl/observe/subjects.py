"""The groups of this process that can be observed."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from mccl.communicator import Communicator
from mccl.observe.stacks import Stacks


class Named(Protocol):
    """What c10d calls a group; it sets both names after the group was made."""

    @property
    def group_name(self) -> str: ...
    @property
    def group_desc(self) -> str: ...


class Subject:
    """One group as its observers see it. Lives as long as the process group holds it."""

    def __init__(self, communicator: Communicator, named: Named) -> None:
        self.communicator = communicator
        self._named = weakref.ref(named)
        config = communicator.config
        self.stacks = Stacks(config.record_size) if config.record_stacks else None
        self.reported = False
        """Whether its failure has been dumped."""

    @property
    def name(self) -> str:
        """Its name in c10d's registry."""
        named = self._named()
        return self.communicator.name if named is None else named.group_name

    @property
    def description(self) -> str:
        """What it is for; ``undefined`` where nobody said."""
        named = self._named()
        return "undefined" if named is None else named.group_desc

    @property
    def global_rank(self) -> int:
        """This process's rank in the job."""
        return self.communicator.global_ranks[self.communicator.rank]


_lock = threading.Lock()
_known: weakref.WeakSet[Subject] = weakref.WeakSet()
_order: weakref.WeakKeyDictionary[Subject, int] = weakref.WeakKeyDictionary()
_made = 0


def add(subject: Subject) -> None:
    """Let observers see it."""
    global _made
    with _lock:
        _made += 1
        _known.add(subject)
        _order[subject] = _made


def all_subjects() -> list[Subject]:
    """Every group of this process, in the order of their making."""
    with _lock:
        return sorted(_known, key=lambda subject: _order[subject])


def _forget() -> None:
    # A forked child has no engine: the parent's groups are not its to observe.
    global _lock
    _lock = threading.Lock()
    _known.clear()
    _order.clear()


os.register_at_fork(after_in_child=_forget)
