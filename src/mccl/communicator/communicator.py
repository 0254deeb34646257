"""One rank's membership in one group: who is in it, how they meet, how it fails.

Theory of operation. The constructor agrees on epoch and secret through the store, makes the
native communicator, registers with the process's listener and announces its addresses; it
waits for nobody. ``ensure`` opens what a collective needs the first time it needs it:

* data links are one-way and opened by their sender, once a (peer, kind);
* one control link a pair, opened by whoever comes first (two do no harm);
* a peer's rails (interfaces x MCCL_NSOCKS) make one link of several sockets, in rail order.

Incoming connections arrive on the listener's thread (``incoming.py``, ``_arrived``). ``_lock``
guards the small tables below and is never held while something blocks; ``_peer_locks`` serialise
opening links to one peer, so that waiting for one never holds up another. Whatever fails here
breaks the native communicator (``fail``), which tells every waiter and every connected rank;
ranks without a connection find word in the store.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar

from torch._C._distributed_c10d import Store

from mccl.communicator import process
from mccl.communicator.connector import Connector, Target
from mccl.communicator.handshake import MAX_RAILS, Claims, derive_key, short_hash
from mccl.communicator.incoming import Incoming
from mccl.communicator.interfaces import (
    choose_interfaces,
    enumerate_interfaces,
    local_address_towards,
)
from mccl.communicator.listener import GroupKey, Listener, Registration
from mccl.communicator.options import prepare
from mccl.communicator.records import (
    PeerRecord,
    Rail,
    check_settings,
    machine_id,
    shared_settings,
)
from mccl.communicator.rendezvous import Rendezvous
from mccl.communicator.routes import Route, choose_routes
from mccl.config import Config, Launch
from mccl.engine import Channel, EngineBroken, Failure, NativeComm, NativeError, Status
from mccl.errors import (
    AbortedError,
    CorruptError,
    InternalError,
    MCCLError,
    MismatchError,
    PeerDiedError,
    PeerLeftError,
    RemoteError,
    UsageError,
    from_native,
)

logger = logging.getLogger("mccl.communicator")

_FAILURES: tuple[tuple[type[MCCLError], Failure], ...] = (
    (PeerDiedError, Failure.PEER_DIED),
    (PeerLeftError, Failure.PEER_LEFT),
    (MismatchError, Failure.MISMATCH),
    (CorruptError, Failure.CORRUPT),
    (RemoteError, Failure.REMOTE),
    (AbortedError, Failure.ABORTED),
)
_CROWDED_SPIN_US = 10
"""Most a rank spins where ranks share cores: on 4 ranks and 2 cores it beat 50 at every size."""
_NO_COLLECTIVE = 255

Seen = TypeVar("Seen")


class Communicator:
    """A group's member in this process.

    ``store`` is the group's own (prefixed) store; ``global_ranks[i]`` is the global rank of
    group rank i; ``timeout`` is the group's. Raises UsageError, ConnectError (port in use) or
    StoreError.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        group_name: str,
        global_ranks: Sequence[int] = (),
        timeout: timedelta = timedelta(minutes=30),
        config: Config | None = None,
        device: str = "cpu",
        make_native: Callable[..., NativeComm] = NativeComm,
    ) -> None:
        if not 0 <= rank < size:
            raise UsageError(f"rank {rank} is not in a group of {size}; expected 0 to {size - 1}.")
        self.rank, self.size, self.name = rank, size, group_name
        self.global_ranks = tuple(global_ranks) or tuple(range(size))
        if len(self.global_ranks) != size:
            raise UsageError(
                f"{len(self.global_ranks)} global ranks were given for a group of {size}; expected "
                "one each."
            )
        self.timeout = timeout
        self.config = config if config is not None else Config.from_env()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ensured: set[tuple[frozenset[int], frozenset[int], bool]] = set()
        self._sending: set[tuple[int, Channel]] = set()
        self._controlled: set[int] = set()
        self._incoming: Incoming | None = None
        self._records: dict[int, PeerRecord] = {}
        self._labels: dict[int, str] = {}
        self._peer_locks: dict[int, threading.Lock] = {}
        self._leaving = False
        self._closed = False
        self._word_left = False
        self._rendezvous: Rendezvous | None = None
        self._listener: Listener | None = None
        if size > 1:
            self._rendezvous = Rendezvous(store, group_name, rank, size)
        self.epoch = self._rendezvous.epoch if self._rendezvous else 1
        crowded = _crowded(size)
        self.native = make_native(
            rank,
            size,
            epoch=self.epoch,
            name=group_name,
            peer_timeout_us=int(self.config.peer_timeout * 1e6),
            park_bytes=self.config.park_bytes,
            # A rank that spins on a shared core keeps its neighbour from sending what it waits for.
            spin_us=min(self.config.spin_us, _CROWDED_SPIN_US) if crowded else self.config.spin_us,
            yield_spin=crowded,
            checksum=self.config.checksum,
            record_capacity=self.config.record_size,
            send_thread=_roomy(size)
            if self.config.send_thread is None
            else self.config.send_thread,
        )
        if self._rendezvous is not None:
            try:
                self._join(self._rendezvous, device)
            except BaseException:
                self.close()
                raise

    # ---- joining --------------------------------------------------------------------------

    def _join(self, rendezvous: Rendezvous, device: str) -> None:
        config, launch = self.config, Launch.from_env()
        secret = config.shared_secret() or rendezvous.random_secret()
        self._job = short_hash(rendezvous.token)
        self._group = short_hash(self.name)
        self._secret_key = derive_key(secret, rendezvous.token)
        self._key: GroupKey = (self._group, self.epoch, self.rank)
        chosen, why = choose_interfaces(
            enumerate_interfaces(),
            config.socket_ifname,
            config.listen_addr,
            local_address_towards(launch.master_addr),
        )
        port = config.port_base + (launch.local_rank or 0) if config.port_base else 0
        self._listener = process.acquire(port=port, bufsize=config.sock_bufsize)
        rails = tuple(
            Rail(item.name, item.speed, tuple(self._listener.bind(item.addresses, item.name)))
            for item in chosen
        )
        announced = frozenset((a.ip, p) for rail in rails for a, p in rail.addresses)
        self._incoming = Incoming(self.rank, self.size, announced, self._arrived)
        self._record = PeerRecord(
            rank=self.rank,
            global_rank=self.global_ranks[self.rank],
            host=socket.gethostname(),
            machine=machine_id(),
            pid=self._pid,
            device=device,
            rails=rails,
            settings=shared_settings(config),
        )
        for item, rail in zip(chosen, rails, strict=True):
            _log_interface(
                f"using interface {item.name} because {why}: "
                f"{', '.join(f'{a.ip} port {p}' for a, p in rail.addresses)}; "
                f"speed {f'{item.speed} Mbit/s' if item.speed else 'unknown'}, "
                f"MTU {item.mtu or 'unknown'}"
            )
        self._connector = Connector(
            connect_timeout=config.connect_timeout,
            bufsize=config.sock_bufsize,
            interrupted=self._interrupted,
        )
        self._label(self.rank, self._record)
        # Registered before announced: whoever reads the record finds the door open.
        self._listener.register(
            Registration(
                self._key,
                self._job,
                self._secret_key,
                self._incoming.admit,
                self._incoming.take,
            )
        )
        rendezvous.publish(self._record)

    # ---- opening links --------------------------------------------------------------------

    def ensure(
        self, send_peers: frozenset[int], recv_peers: frozenset[int], p2p: bool = False
    ) -> None:
        """Opens the links that sending to and receiving from these group ranks takes.

        Idempotent; the steady state is one look into a set. Raises MCCLError (by culprit) when
        a peer cannot be reached or the group is broken; the group is broken then on every rank.
        """
        wanted = (send_peers, recv_peers, p2p)
        if wanted in self._ensured:
            return
        self._interrupted()
        data = Channel.P2P_TX if p2p else Channel.COLLECTIVE_TX
        for peer in sorted(send_peers | recv_peers):
            if peer == self.rank:
                continue
            if not 0 <= peer < self.size:
                raise UsageError(
                    f"rank {peer} is not in group '{self.name}'; expected 0 to {self.size - 1}."
                )
            try:
                self._ensure_peer(peer, data if peer in send_peers else None)
            except MCCLError as error:
                if self._native_error() is not None:
                    raise self.error() from error  # the first failure is the one to tell
                self._broke(error, peer)
                raise
        self._ensured.add(wanted)

    def _ensure_peer(self, peer: int, data: Channel | None) -> None:
        with self._peer_lock(peer):
            record = self._fetch(peer)
            routes = choose_routes(self._record, record)
            with self._lock:
                controlled = peer in self._controlled
            if not controlled:
                self._open(peer, Channel.CONTROL, [routes[0]])
                with self._lock:
                    self._controlled.add(peer)
            if data is not None and (peer, data) not in self._sending:
                self._open(peer, data, [r for r in routes for _ in range(self.config.nsocks)])
                self._sending.add((peer, data))

    def _peer_lock(self, peer: int) -> threading.Lock:
        with self._lock:
            return self._peer_locks.setdefault(peer, threading.Lock())

    def subnets(self) -> list[str | None]:
        """The network of each rank's first interface, None for one without a routable address;
        the same list on every rank. Waits for the announcements of all; raises as ``ensure``."""
        found = []
        for peer in range(self.size):
            self._interrupted()
            if peer == self.rank:
                record = self._record
            else:
                with self._peer_lock(peer):
                    record = self._fetch(peer)
            found.append(record.subnet)
        return found

    def _fetch(self, peer: int) -> PeerRecord:
        record = self._records.get(peer)
        if record is None:
            assert self._rendezvous is not None
            record = self._rendezvous.fetch(
                peer,
                global_rank=self.global_ranks[peer],
                timeout=self.config.connect_timeout,
                interrupted=self._interrupted,
            )
            self._label(peer, record)
            check_settings(self._record, record)
            self._records[peer] = record
        return record

    def _label(self, peer: int, record: PeerRecord) -> None:
        self._labels[peer] = record.label
        # The engine speaks of group ranks; users know global ones.
        rank = self.global_ranks[peer]
        shown = record.label if rank == peer else f"global rank {rank}, {record.label}"
        self.native.set_peer_label(peer, shown)

    def _open(self, peer: int, channel: Channel, rails: Sequence[list[Route]]) -> None:
        rendezvous, record = self._rendezvous, self._records[peer]
        assert rendezvous is not None
        if len(rails) > MAX_RAILS:
            raise UsageError(
                f"{len(rails)} sockets to one peer are too many; expected at most {MAX_RAILS}. "
                "Lower MCCL_NSOCKS."
            )
        target = Target(self.global_ranks[peer], record.label)
        socks: list[socket.socket] = []
        try:
            for rail, candidates in enumerate(rails):
                claims = Claims(
                    job=self._job,
                    group=self._group,
                    epoch=self.epoch,
                    source=self.rank,
                    destination=peer,
                    channel=int(channel),
                    rail=rail,
                    rails=len(rails),
                    source_address=("0.0.0.0", 0),
                    destination_address=("0.0.0.0", 0),
                )
                socks.append(
                    self._connector.open(
                        candidates,
                        target,
                        self._secret_key,
                        claims,
                        lambda: rendezvous.recheck(peer, target.global_rank),
                    )
                )
                prepare(
                    socks[-1],
                    control=channel is Channel.CONTROL,
                    peer_timeout=self.config.peer_timeout,
                )
        except BaseException:
            for sock in socks:
                sock.close()
            raise
        logger.debug("rank %d opened %s to rank %d: %s", self.rank, channel.name, peer, rails)
        self._hand_over(peer, channel, socks)
        self._interrupted()

    def _interrupted(self) -> None:
        """Raises when the group is broken, closed or not this process's."""
        if self._pid != os.getpid():
            raise UsageError(
                f"group '{self.name}' belongs to process {self._pid}, this is its forked child "
                f"{os.getpid()}. Create process groups in the process that uses them (start "
                "workers by 'spawn', or fork before init_process_group)."
            )
        if self._closed or self._native_error() is not None:
            raise self.error()

    # ---- being connected to (listener's thread) -------------------------------------------

    def _arrived(self, peer: int, channel: Channel, socks: Sequence[socket.socket]) -> None:
        if channel is Channel.CONTROL:
            with self._lock:
                self._controlled.add(peer)
        try:
            for sock in socks:
                prepare(
                    sock,
                    control=channel is Channel.CONTROL,
                    peer_timeout=self.config.peer_timeout,
                )
        except OSError as error:
            for sock in socks:
                sock.close()
            rank = self.global_ranks[peer]
            self._broke(
                PeerDiedError(f"rank {rank}'s connection ended at once: {error}", peer=rank), peer
            )
            return
        self._hand_over(peer, channel, socks)

    def _hand_over(self, peer: int, channel: Channel, socks: Sequence[socket.socket]) -> None:
        # Under the lock, so that close() cannot destroy the native communicator meanwhile.
        with self._lock:
            if self._closed:
                for sock in socks:
                    sock.close()
                return
            try:
                self.native.add_link(peer, channel, [sock.detach() for sock in socks])
                return
            except EngineBroken as error:
                # The engine has closed the sockets. Broken already: whoever asks is told why.
                if error.status is Status.BROKEN:
                    return
                refusal = f"the engine refuses a link to rank {self.global_ranks[peer]}: {error}"
        self._broke(InternalError(refusal, phase="connect"), peer)

    def _native_error(self) -> NativeError | None:
        with self._lock:
            return None if self._closed else self.native.error()

    # ---- failing and ending ---------------------------------------------------------------

    def _broke(self, error: MCCLError, peer: int) -> None:
        """Breaks the native communicator, so that every waiter and every rank knows."""
        if self._closed or self._native_error() is not None:
            return
        failure = next((f for kind, f in _FAILURES if isinstance(error, kind)), Failure.INTERNAL)
        culprit = peer
        if isinstance(error, RemoteError):
            known = error.peer in self.global_ranks
            culprit = (
                self.global_ranks.index(error.peer) if known and error.peer is not None else -1
            )
        message = str(error)
        found = NativeError(
            failure=failure,
            culprit=culprit,
            reporter=self.rank,
            collective=_NO_COLLECTIVE,
            sequence=0,
            waited_us=int((error.waited or 0.0) * 1e6),
            phase=error.phase or "connect",
            message=message,
        )
        with self._lock:
            if not self._closed:
                self.native.fail(found)
        if not isinstance(error, RemoteError):
            self._leave_word(self.rank, culprit, message)

    def _leave_word(self, reporter: int, culprit: int, message: str) -> None:
        """Tells ranks that have no connection yet, once, through the store."""
        with self._lock:
            if self._word_left or self._rendezvous is None:
                return
            self._word_left = True
        self._rendezvous.mark_failed(
            {
                "rank": self.global_ranks[reporter],
                "culprit": self.global_ranks[culprit] if culprit >= 0 else None,
                "message": message,
            }
        )

    def error(self) -> MCCLError:
        """What broke the group, as an exception to raise."""
        native = self._native_error()
        rank = self.global_ranks[self.rank]
        if native is not None:
            if native.reporter == self.rank:
                self._leave_word(self.rank, native.culprit, native.message)
            return from_native(
                native,
                rank=rank,
                group=self.name,
                labels=self._labels,
                global_ranks=self.global_ranks,
            )
        if self._closed:
            return AbortedError(
                f"[rank {rank}] group '{self.name}' was destroyed on this rank. Create a new "
                "process group to continue.",
                rank=rank,
            )
        return InternalError(
            f"[rank {rank}] group '{self.name}' is not broken, yet an error was asked for. Please "
            "report this.",
            rank=rank,
        )

    def inspect(self, look: Callable[[NativeComm], Seen]) -> Seen | None:
        """What ``look`` finds in the engine; None once closed and in a forked child."""
        if self._pid != os.getpid():
            return None
        # Under the lock, so that close() cannot destroy the native communicator meanwhile.
        with self._lock:
            return None if self._closed else look(self.native)

    def abort(self, reason: str) -> None:
        """Breaks the group here and everywhere; may be called from any thread."""
        with self._lock:
            if self._closed:
                return
            self.native.abort(reason)
        self._leave_word(self.rank, self.rank, reason)

    def close(self) -> None:
        """Says goodbye, waits for nothing; idempotent. In a forked child: does nothing."""
        with self._lock:
            if self._leaving:
                return
            self._leaving = True
        if self._pid != os.getpid():
            self._closed = True
            return
        broken = self._native_error()
        if broken is not None and broken.reporter >= 0:
            # Whoever is refused here from now on must learn why, and it may ask before the rank
            # that found the failure has left word.
            self._leave_word(broken.reporter, broken.culprit, broken.message)
        # Before anything is closed: a peer that has just been admitted must hear the goodbye, or
        # it would take us for dead.
        if self._listener is not None:
            self._listener.deregister(self._key)
        with self._lock:
            self._closed = True
        if self._incoming is not None:
            self._incoming.close()
        with self._lock:
            self.native.destroy()
        if self._rendezvous is not None:
            self._rendezvous.leave()
        if self._listener is not None:
            process.release(self._listener)


_logged: set[str] = set()


def _log_interface(line: str) -> None:
    # Every group of a process uses the same interface: once is enough.
    if line not in _logged:
        _logged.add(line)
        logger.info("%s", line)


def _local_ranks(size: int) -> int:
    """Ranks of the group that share this host's cores, as far as the environment says.

    Without LOCAL_WORLD_SIZE, members that meet on the loopback interface (or by a store of their
    own) are taken to share this host, others to have one each.
    """
    launch = Launch.from_env()
    if launch.local_world_size is not None:
        return launch.local_world_size
    meeting = launch.master_addr or "localhost"
    return size if meeting == "localhost" or meeting.startswith(("127.", "::1")) else 1


def _roomy(size: int) -> bool:
    """Cores to spare for a second engine thread: two or more for each rank of this host."""
    return (os.cpu_count() or 1) >= 2 * _local_ranks(size)


def _crowded(size: int) -> bool:
    """More ranks on this host than cores."""
    return _local_ranks(size) > (os.cpu_count() or 1)
