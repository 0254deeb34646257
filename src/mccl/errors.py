"""Every error MCCL raises, sorted by who can do something about it.

==================  =====================================================================
culprit             exception
==================  =====================================================================
you                 ``UsageError``; across ranks ``MismatchError``
a peer              ``PeerDiedError``, ``PeerSilentError``, ``PeerLeftError``
the network         ``ConnectError``, ``CorruptError``
the store           ``StoreError``
time                ``CollectiveTimeoutError``
somebody's abort    ``AbortedError``; another rank's own fault ``RemoteError``
us                  ``InternalError``
==================  =====================================================================

All are ``torch.distributed.DistBackendError``, so code written for other backends catches
them unchanged. ``docs/failures.md`` says when each is raised and what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch.distributed import DistBackendError, DistNetworkError, DistStoreError


class MCCLError(DistBackendError):
    """Base of all errors of MCCL.

    The attributes are None where unknown: ``rank`` is the global rank that raised, ``peer``
    the global rank to blame, ``host`` the name and address of the peer's host, ``collective``
    the c10d name of the operation in flight ("all_reduce"), ``sequence`` its number in the
    group, ``phase`` what it was doing ("connect", "header", "receive", "send", "ticket",
    "idle", "store"), ``waited`` for how many seconds.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        host: str | None = None,
        peer: int | None = None,
        collective: str | None = None,
        sequence: int | None = None,
        phase: str | None = None,
        waited: float | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.host = host
        self.peer = peer
        self.collective = collective
        self.sequence = sequence
        self.phase = phase
        self.waited = waited


class UsageError(MCCLError, ValueError):
    """A call, an environment variable or a setting that makes no sense."""


class MismatchError(UsageError):
    """Ranks called different things, or run with different settings."""


class PeerError(MCCLError):
    """Another rank is the reason."""


class PeerDiedError(PeerError):
    """A peer's connection closed or reset without a goodbye."""


class PeerSilentError(PeerError):
    """A peer gave no sign of life for ``MCCL_PEER_TIMEOUT``."""


class PeerLeftError(PeerError):
    """A peer ended its group in good order while this rank still needed it."""


class NetworkError(MCCLError, DistNetworkError):
    """The network is the reason."""


class ConnectError(NetworkError):
    """A connection to a peer could not be made or was refused."""


class CorruptError(NetworkError):
    """Bytes on the wire are not what was sent."""


class StoreError(MCCLError, DistStoreError):
    """The c10d Store through which ranks meet is gone or does not answer."""


class CollectiveTimeoutError(MCCLError):
    """An operation's own timeout passed."""


class AbortedError(MCCLError):
    """The group was aborted or destroyed on this rank."""


class RemoteError(MCCLError):
    """Another rank broke the group for a reason of its own."""


class InternalError(MCCLError):
    """A fault of MCCL, or the system refused a resource."""


class NativeErrorLike(Protocol):
    """The fields of ``mccl_error`` in mccl.h; ``mccl.engine.NativeError`` has them."""

    @property
    def failure(self) -> int: ...
    @property
    def culprit(self) -> int: ...
    @property
    def reporter(self) -> int: ...
    @property
    def collective(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def waited_us(self) -> int: ...
    @property
    def phase(self) -> str: ...
    @property
    def message(self) -> str: ...


# mccl_collective and mccl_failure of mccl.h; this leaf imports no other room.
_COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
    "send",
    "recv",
)

_CLASSES: Mapping[int, type[MCCLError]] = {
    1: PeerDiedError,
    2: PeerSilentError,
    3: PeerLeftError,
    4: CollectiveTimeoutError,
    5: MismatchError,
    6: CorruptError,
    7: AbortedError,
    8: RemoteError,
    9: InternalError,
}

_ADVICE: Mapping[type[MCCLError], str] = {
    PeerDiedError: "look at that rank's own log for why it ended (killed for memory? crashed?), "
    "then restart the job from its last checkpoint",
    PeerSilentError: "check that the host is up and its process not stopped or swapping, and the "
    "cable; if silences are expected raise MCCL_PEER_TIMEOUT",
    PeerLeftError: "let every rank make the same calls before destroy_process_group (end with a "
    "barrier)",
    CollectiveTimeoutError: "see which rank never arrived; if the work between two collectives "
    "really takes this long, raise the group's timeout",
    MismatchError: "make every rank of the group issue the same collectives in the same order "
    "with the same dtype and size",
    CorruptError: "check cable, adapter and memory of the two hosts; nothing of this collective "
    "was handed out",
    AbortedError: "create a new process group to continue",
    RemoteError: "look at the log of the rank that reported it",
    InternalError: "please report this message together with the flight record",
    ConnectError: "check that the two hosts reach each other on this address and that no firewall "
    "drops the port",
    StoreError: "see whether the process that hosts the store (rank 0 or the launcher) still runs",
}


def collective_name(collective: int) -> str | None:
    """The c10d name of a ``mccl_collective``; None when none is in flight (255)."""
    return _COLLECTIVES[collective] if 0 <= collective < len(_COLLECTIVES) else None


def advice(kind: type[MCCLError]) -> str | None:
    """What to do about an error of this class, in one sentence."""
    return _ADVICE.get(kind)


def from_native(
    native: NativeErrorLike,
    *,
    rank: int | None = None,
    group: str = "",
    labels: Mapping[int, str] | None = None,
    global_ranks: Sequence[int] | None = None,
) -> MCCLError:
    """The exception for what broke a communicator.

    ``native`` speaks of group ranks; ``labels`` maps a group rank to host, address and pid
    ("mac-17 (10.0.0.17) pid 4242") and ``global_ranks`` a group rank to the global rank the
    user knows. ``rank`` is the global rank that raises.
    """
    labels = labels or {}
    kind = _CLASSES.get(int(native.failure), InternalError)
    if kind is InternalError:  # mccl.h has no number for these two
        kind = {"connect": ConnectError, "store": StoreError}.get(native.phase, InternalError)
    collective = collective_name(int(native.collective))
    peer = _global(native.culprit, global_ranks)
    reporter = _global(native.reporter, global_ranks)
    waited = native.waited_us / 1e6 if native.waited_us > 0 else None
    host = labels.get(native.culprit)

    sentences = [native.message.rstrip(". ") or f"the group broke ({kind.__name__})"]
    told = peer == native.culprit and f"rank {peer} " in native.message
    if peer is not None and not (told and (host is None or host in native.message)):
        sentences.append(f"culprit: rank {peer}" + (f" on {host}" if host else ""))
    if reporter is not None and reporter != rank:
        where = labels.get(native.reporter)
        sentences.append(f"noticed by rank {reporter}" + (f" on {where}" if where else ""))
    if collective is not None:
        sentences.append(f"in flight: {collective} #{native.sequence}, {native.phase or 'unknown'}")
    if waited is not None:
        sentences.append(f"waited {waited:.3f} s")
    hint = _ADVICE.get(kind)
    if hint:
        sentences.append(f"what to do: {hint}")
    prefix = f"[rank {rank}] " if rank is not None else ""
    if group:
        prefix += f"group '{group}': "
    return kind(
        prefix + ". ".join(sentences) + ".",
        rank=rank,
        host=host,
        peer=peer,
        collective=collective,
        sequence=int(native.sequence) if collective is not None else None,
        phase=native.phase or None,
        waited=waited,
    )


def _global(group_rank: int, global_ranks: Sequence[int] | None) -> int | None:
    if group_rank < 0:
        return None
    if global_ranks is not None and group_rank < len(global_ranks):
        return int(global_ranks[group_rank])
    return int(group_rank)
