"""How the ranks of a group find each other: keys in the c10d Store.

Under ``mccl/<group>/``: ``count/<rank>`` counts this rank's incarnations of the group; it is
the epoch, equal on all ranks because each creates the group equally often. Under
``mccl/<group>/<epoch>/``::

    token        random, written by whoever is first; tells this job from any other
    secret       random, likewise; absent when MCCL_SECRET is set
    addr/<rank>  the rank's address record (``records.py``), or "left" once it has closed
    failed       why the group broke, for ranks that have no connection yet to hear it from
    left         how many ranks have closed; the last one deletes all of these

The store a communicator gets is shared with other code, and a TCPStore client that waits for
a key blocks every other call on the same client. So nothing here waits inside the store:
keys are polled, after the first miss on a clone where the store can make one.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch._C._distributed_c10d import Store

from mccl.communicator.records import PeerRecord
from mccl.errors import ConnectError, PeerLeftError, RemoteError, StoreError

_LEFT = b"left"
_FIRST_POLL, _LAST_POLL = 0.002, 0.1
_BEST_EFFORT_SECONDS = 1.0


@contextlib.contextmanager
def _store_call(doing: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # c10d's errors are subclasses of it
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StoreError(
            f"the store through which the ranks meet failed while {doing}: {reason}. The process "
            "that hosts it (rank 0, or torchrun's agent on the first host) has ended or cannot be "
            "reached; look at its log, then restart the job.",
            phase="store",
        ) from error


class Rendezvous:
    """One rank's view of one incarnation of a group in the store."""

    def __init__(self, store: Store, group_name: str, rank: int, size: int) -> None:
        self._store = store
        self.rank = rank
        self.size = size
        base = f"mccl/{group_name}"
        with _store_call("this rank counted its incarnation of the group"):
            self.epoch = int(store.add(f"{base}/count/{rank}", 1))
        self._prefix = f"{base}/{self.epoch}"
        with _store_call("the job's token was agreed"):
            self.token = self._agree("token")
        self._clone: Store | None = None
        self._clone_lock = threading.Lock()
        self._unanswered = False

    def _agree(self, name: str) -> str:
        mine = secrets.token_hex(32)
        return bytes(self._store.compare_set(f"{self._prefix}/{name}", "", mine)).decode()

    def random_secret(self) -> bytes:
        """The group's random secret, the same on every rank that can read the store."""
        with _store_call("the group's secret was agreed"):
            return self._agree("secret").encode()

    def publish(self, record: PeerRecord) -> None:
        with _store_call("this rank announced its addresses"):
            self._store.set(f"{self._prefix}/addr/{self.rank}", record.to_json())

    def fetch(
        self,
        peer: int,
        *,
        global_rank: int,
        timeout: float,
        interrupted: Callable[[], None],
    ) -> PeerRecord:
        """The peer's record; waits up to ``timeout`` seconds for it to appear.

        ``interrupted`` raises to end the wait. Raises PeerLeftError when the peer has closed
        the group, RemoteError when another rank has broken it, ConnectError on time-out.
        """
        key = f"{self._prefix}/addr/{peer}"
        begin = time.monotonic()
        pause = _FIRST_POLL
        store = self._store
        while True:
            with _store_call(f"looking for rank {global_rank}'s addresses"):
                if store.check([key]):
                    value = bytes(store.get(key))
                    break
            interrupted()
            self.raise_if_failed(store)
            waited = time.monotonic() - begin
            if waited >= timeout:
                raise ConnectError(
                    f"rank {global_rank} did not join the group within {waited:.1f} s: it has not "
                    "announced an address. Expected every rank to create the group. See whether "
                    f"rank {global_rank} was started and what its log says; for slow starts raise "
                    "MCCL_CONNECT_TIMEOUT_MS.",
                    peer=global_rank,
                    phase="connect",
                    waited=waited,
                )
            store = self._own_client()
            time.sleep(min(pause, max(timeout - waited, 0.0)))
            pause = min(pause * 1.5, _LAST_POLL)
        if value == _LEFT:
            self.raise_if_failed(store)  # then it left because of that
            raise _left_error(global_rank)
        return PeerRecord.from_json(value)

    def recheck(self, peer: int, global_rank: int) -> None:
        """Raises when the peer has left or the group broke since its record was fetched."""
        self.raise_if_failed()
        with _store_call(f"looking whether rank {global_rank} is still in the group"):
            left = bytes(self._store.get(f"{self._prefix}/addr/{peer}")) == _LEFT
        if left:
            raise _left_error(global_rank)

    def _own_client(self) -> Store:
        with self._clone_lock:
            if self._clone is None:
                try:
                    self._clone = getattr(self._store, "clone", lambda: self._store)()
                except RuntimeError:  # this kind of store cannot
                    self._clone = self._store
            return self._clone

    def mark_failed(self, description: Mapping[str, Any]) -> None:
        """Leaves word for ranks without a connection; the first word stays. Best effort."""
        key, word = f"{self._prefix}/failed", json.dumps(dict(description))
        self._best_effort(lambda: self._store.compare_set(key, "", word))

    def raise_if_failed(self, store: Store | None = None) -> None:
        """Raises RemoteError when a rank has left word that the group broke."""
        store = self._store if store is None else store
        key = f"{self._prefix}/failed"
        with _store_call("looking whether the group broke elsewhere"):
            if not store.check([key]):
                return
            word = json.loads(store.get(key))
        raise RemoteError(
            f"rank {word.get('rank')} broke the group: {word.get('message')}",
            peer=word.get("culprit"),
            phase="connect",
        )

    def leave(self) -> None:
        """Notes that this rank left; the last one to leave deletes the keys. Best effort."""
        self._clone = None
        keys = ["token", "secret", "failed", "left"]
        keys += [f"addr/{rank}" for rank in range(self.size)]

        def go() -> None:
            self._store.set(f"{self._prefix}/addr/{self.rank}", _LEFT.decode())
            if self._store.add(f"{self._prefix}/left", 1) == self.size:
                for key in keys:
                    self._store.delete_key(f"{self._prefix}/{key}")

        self._best_effort(go)

    def _best_effort(self, call: Callable[[], object]) -> None:
        """Makes a call to the store that may fail, for at most a second.

        A store whose host is cut off answers after its own time-out, which may be half an hour, and
        another thread may be waiting in it: aborting and closing must not hang on that. What did
        not answer once is not waited for again.
        """
        if self._unanswered:
            return

        def run() -> None:
            with contextlib.suppress(RuntimeError):  # the store may be what failed
                call()

        thread = threading.Thread(target=run, name="mccl-store", daemon=True)
        thread.start()
        thread.join(_BEST_EFFORT_SECONDS)
        self._unanswered = thread.is_alive()


def _left_error(global_rank: int) -> PeerLeftError:
    return PeerLeftError(
        f"rank {global_rank} has destroyed this group already, but this rank still needs it. "
        "Expected every rank to make the same calls: end with a barrier before "
        "destroy_process_group.",
        peer=global_rank,
        phase="connect",
    )
