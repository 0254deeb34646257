"""What strangers try at the door of a rank: one connection of each kind, and what came back.

``Recording`` is what an eavesdropper has of a real handshake, with the key that he has not: only
``CLAIMED_TWICE`` uses it, as a second process of the job would.
"""

from __future__ import annotations

import contextlib
import enum
import random
import secrets
import socket
from collections import deque
from dataclasses import dataclass, field

from mccl.communicator import handshake
from mccl.communicator.handshake import Claims, HandshakeError, Initiator, RejectedError, Verdict

PATIENCE = 20.0
"""Seconds to wait for an end that must come; longer than the listener's own limit."""

_MOST_RANDOM = 2000
_HUNG_UP = (ConnectionResetError, BrokenPipeError)


class Attempt(enum.StrEnum):
    """What a stranger tries."""

    RANDOM = "random bytes"
    GARBLED = "garbled greeting"
    HALF_OPEN = "half-open"
    REPLAY = "replayed handshake"
    WRONG_SECRET = "wrong secret"
    CLAIMED_TWICE = "rank claimed twice"


class Answer(enum.StrEnum):
    """What came back."""

    NOTHING = "nothing"
    CHALLENGE = "a challenge, then nothing"
    REFUSED = "refused, with the reason"
    ADMITTED = "admitted"
    OTHER = "something else"
    SILENCE = "no end in time"


EXPECTED = {
    Attempt.RANDOM: {Answer.NOTHING},
    Attempt.GARBLED: {Answer.NOTHING, Answer.CHALLENGE},  # as where the claims still name a group
    Attempt.HALF_OPEN: {Answer.NOTHING},
    Attempt.REPLAY: {Answer.CHALLENGE},
    Attempt.WRONG_SECRET: {Answer.CHALLENGE},
    Attempt.CLAIMED_TWICE: {Answer.REFUSED},
}
"""All that may come back. NOTHING is added for all when too many knock at once."""


@dataclass(frozen=True)
class Recording:
    """One handshake of a member, as it left."""

    key: bytes = field(repr=False)
    claims: Claims
    hello: bytes = field(repr=False)
    proof: bytes = field(repr=False)


class Recorder:
    """Makes initiators that keep a copy of what they send, in ``recordings``."""

    def __init__(self) -> None:
        self.recordings: list[Recording] = []

    def __call__(self, key: bytes, claims: Claims) -> Initiator:
        recordings = self.recordings

        class Recorded(Initiator):
            def on_challenge(self, frame: bytes) -> bytes:
                proof = super().on_challenge(frame)
                recordings.append(Recording(key, claims, self.hello(), proof))
                return proof

        return Recorded(key, claims)


class Stranger:
    """Knocks at the doors that ``recordings`` name; used by one thread.

    Holds up to ``most_open`` half-open connections, so that the listener has to end them.
    """

    def __init__(self, recordings: list[Recording], seed: str, most_open: int = 50) -> None:
        self._recordings = recordings
        self._chance = random.Random(seed)
        self._open: deque[socket.socket] = deque()
        self._most_open = most_open

    def knock(self, attempt: Attempt) -> Answer:
        """Try once. For half-open: what the oldest of those held open was answered."""
        recording = self._chance.choice(self._recordings)
        sock = socket.create_connection(recording.claims.destination_address, PATIENCE)
        if attempt is Attempt.HALF_OPEN:
            sock.sendall(recording.hello[: self._chance.randrange(handshake.HELLO_SIZE)])
            self._open.append(sock)
            return self._ended(self._open.popleft()) if self._full else Answer.NOTHING
        try:
            with sock:
                return self._talk(sock, attempt, recording)
        except _HUNG_UP:
            return Answer.NOTHING
        except TimeoutError:
            return Answer.SILENCE

    def leave(self) -> list[Answer]:
        """Gives up what is half-open; the answers that had come."""
        return [self._ended(self._open.popleft()) for _ in range(len(self._open))]

    @property
    def _full(self) -> bool:
        return len(self._open) > self._most_open

    def _ended(self, sock: socket.socket) -> Answer:
        with sock:
            sock.setblocking(False)
            try:
                return Answer.OTHER if sock.recv(1) else Answer.NOTHING
            except (BlockingIOError, ConnectionResetError):
                return Answer.NOTHING

    def _talk(self, sock: socket.socket, attempt: Attempt, recording: Recording) -> Answer:
        if attempt in (Attempt.RANDOM, Attempt.GARBLED):
            # It may have hung up before all has left (ENOTCONN has no class of its own).
            with contextlib.suppress(OSError):
                sock.sendall(self._noise(attempt, recording))
                sock.shutdown(socket.SHUT_WR)
            return self._rest(sock, b"")
        if attempt is Attempt.REPLAY:
            sock.sendall(recording.hello)
            challenge = self._read(sock, handshake.CHALLENGE_SIZE)
            if not challenge:
                return Answer.NOTHING
            sock.sendall(recording.proof)
            return self._rest(sock, challenge)
        if attempt is Attempt.WRONG_SECRET:
            sock.sendall(Initiator(secrets.token_bytes(32), recording.claims).hello())
            challenge = self._read(sock, handshake.CHALLENGE_SIZE)
            if not challenge:
                return Answer.NOTHING
            # What a proof under any other key looks like to the acceptor.
            sock.sendall(secrets.token_bytes(handshake.PROOF_SIZE))
            return self._rest(sock, challenge)
        return self._claim(sock, Initiator(recording.key, recording.claims))

    def _claim(self, sock: socket.socket, member: Initiator) -> Answer:
        sock.sendall(member.hello())
        challenge = self._read(sock, handshake.CHALLENGE_SIZE)
        if not challenge:
            return Answer.NOTHING
        sock.sendall(member.on_challenge(challenge))
        try:
            member.on_verdict(self._read(sock, handshake.VERDICT_SIZE))
        except RejectedError as error:
            return Answer.REFUSED if error.verdict == Verdict.DUPLICATE else Answer.OTHER
        except HandshakeError:
            return Answer.OTHER
        return Answer.ADMITTED

    def _noise(self, attempt: Attempt, recording: Recording) -> bytes:
        if attempt is Attempt.RANDOM:
            return self._chance.randbytes(self._chance.randint(1, _MOST_RANDOM))
        hello = bytearray(recording.hello)
        hello[self._chance.randrange(len(hello))] ^= 1 << self._chance.randrange(8)
        return bytes(hello) + self._chance.randbytes(handshake.PROOF_SIZE)

    def _read(self, sock: socket.socket, size: int) -> bytes:
        """That many bytes; what there was of them when the other end closed."""
        data = b""
        while len(data) < size and (chunk := sock.recv(size - len(data))):
            data += chunk
        return data

    def _rest(self, sock: socket.socket, before: bytes) -> Answer:
        """Reads to the end; anything behind a challenge would be a verdict."""
        data = before
        # A reset is how a close looks that leaves bytes of ours unread.
        with contextlib.suppress(*_HUNG_UP):
            while len(data) <= handshake.CHALLENGE_SIZE and (chunk := sock.recv(4096)):
                data += chunk
        if len(data) > handshake.CHALLENGE_SIZE:
            return Answer.OTHER
        return Answer.CHALLENGE if len(data) == handshake.CHALLENGE_SIZE else Answer.NOTHING
