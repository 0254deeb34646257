"""The plan: a collective as data.

A plan says, for one rank of one collective, which elements go where and after
what. It knows sizes and ranks only: no sockets, no tensors, no clock. The native
engine runs plans (``native/src/executor.cc``), ``plans.check`` proves them, and
``mccl.model`` simulates them; all three read the same rules, which are:

* **FIFO.** Steps that send to one peer leave in list order; steps that receive
  from one peer land in list order. A step on a connection starts only when the
  step before it on that connection is complete, so FIFO order is a dependency.
* **Dependencies point back.** A step depends only on earlier steps of the list.
  ``STREAM``: element x may move once element x of that step is done (both steps
  have the same count). ``FULL``: may start once that step is complete.
* **Local steps** (``COPY``, ``REDUCE``) run whenever their dependencies allow.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class StepKind(enum.IntEnum):
    """What a step does. Values are those of ``mccl_step_kind`` in ``native/include/mccl.h``."""

    SEND = 0
    """``src`` goes to ``peer``."""
    RECV = 1
    """Bytes from ``peer`` land in ``dst``."""
    RECV_REDUCE = 2
    """``dst[x] = src[x] ⊕ incoming[x]``; ``dst`` and ``src`` may be the same region."""
    COPY = 3
    """``dst[x] = src[x]``, no peer."""
    REDUCE = 4
    """``dst[x] = dst[x] ⊕ src[x]``, no peer."""


class DepKind(enum.IntEnum):
    """How a step waits for another. Values are those of ``mccl_dep_kind``."""

    STREAM = 0
    FULL = 1


class Collective(enum.IntEnum):
    """Values are those of ``mccl_collective``."""

    ALL_REDUCE = 0
    REDUCE_SCATTER = 1
    ALL_GATHER = 2
    BROADCAST = 3
    REDUCE = 4
    GATHER = 5
    SCATTER = 6
    ALL_TO_ALL = 7
    BARRIER = 8


@dataclass(frozen=True, slots=True)
class Region:
    """``count`` elements of buffer number ``buffer``, from element ``offset``."""

    buffer: int
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class Dep:
    """Wait for step number ``step``."""

    step: int
    kind: DepKind = DepKind.STREAM


@dataclass(frozen=True, slots=True)
class Step:
    """One move or combination of elements; every region it names has the same count."""

    kind: StepKind
    peer: int = -1
    dst: Region | None = None
    src: Region | None = None
    deps: tuple[Dep, ...] = ()
    final: bool = False
    """The written value is the collective's result: AVG divides here, once."""
    incoming_first: bool = False
    """Operand order: ``incoming ⊕ src`` (RECV_REDUCE) or ``src ⊕ dst`` (REDUCE)."""

    @property
    def count(self) -> int:
        """Elements moved."""
        region = self.src if self.src is not None else self.dst
        return 0 if region is None else region.count


@dataclass(frozen=True, slots=True)
class Scratch:
    """A buffer the engine lends for the length of one operation."""

    count: int
    accumulate: bool = False
    """Of the accumulation dtype (float32 for float16 and bfloat16) instead of the dtype."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One rank's part of a collective.

    Buffers ``0 .. len(external)-1`` are the caller's (``external[i]`` elements each),
    the ``scratch`` buffers follow. Which external buffer is the input and which the
    output is each algorithm's docstring's to say.
    """

    collective: Collective
    algorithm: str
    world: int
    rank: int
    steps: tuple[Step, ...]
    external: tuple[int, ...]
    scratch: tuple[Scratch, ...] = ()
    root: int = -1
    send_peers: frozenset[int] = field(default=frozenset())
    recv_peers: frozenset[int] = field(default=frozenset())

    @property
    def scratch_base(self) -> int:
        """Number of the first scratch buffer."""
        return len(self.external)


class PlanBuilder:
    """Collects steps and hands back their numbers, so that later steps can depend on them."""

    def __init__(
        self,
        collective: Collective,
        algorithm: str,
        world: int,
        rank: int,
        external: tuple[int, ...],
        root: int = -1,
    ) -> None:
        if world < 1:
            raise ValueError(f"world size must be at least 1, got {world}")
        if not 0 <= rank < world:
            raise ValueError(f"rank must be in [0, {world}), got {rank}")
        self._collective = collective
        self._algorithm = algorithm
        self.world = world
        self.rank = rank
        self._root = root
        self._external = external
        self._scratch: list[Scratch] = []
        self._steps: list[Step] = []

    def scratch(self, count: int, *, accumulate: bool = False) -> int:
        """Reserve a scratch buffer of ``count`` elements; returns its buffer number."""
        self._scratch.append(Scratch(count, accumulate))
        return len(self._external) + len(self._scratch) - 1

    def add(self, step: Step) -> int:
        """Append ``step``; returns its number."""
        self._steps.append(step)
        return len(self._steps) - 1

    def build(self) -> Plan:
        """The finished plan."""
        sends = frozenset(s.peer for s in self._steps if s.kind is StepKind.SEND)
        receives = frozenset(
            s.peer for s in self._steps if s.kind in (StepKind.RECV, StepKind.RECV_REDUCE)
        )
        return Plan(
            collective=self._collective,
            algorithm=self._algorithm,
            world=self.world,
            rank=self.rank,
            steps=tuple(self._steps),
            external=self._external,
            scratch=tuple(self._scratch),
            root=self._root,
            send_peers=sends,
            recv_peers=receives,
        )
