"""Mutual proof that two ends of a connection hold the job's secret.

Theory of operation. A textbook challenge-response (ISO/IEC 9798-4, three passes) with
HMAC-SHA256 (RFC 2104), then a verdict. Every frame has a fixed size::

    initiator                                   acceptor
    HELLO      claims, nonce_i            ->
                                          <-    CHALLENGE  nonce_a, HMAC(K, "acceptor"  | T)
    PROOF      HMAC(K, "initiator" | T)   ->
                                          <-    VERDICT    code, HMAC(K, "verdict" | T | code)

    T = HELLO | nonce_a          K = HMAC(secret, label | job token)

* Both ends contribute a fresh nonce, so no recorded transcript fits again.
* Each direction has its own label, so no frame can be reflected to its sender.
* HELLO holds everything a connection is for (job, group, epoch, both ranks, channel, rail,
  both addresses), so a proof is worthless on any other connection. The acceptor checks that
  the address dialled is one of its own: a relay announced under its own address fails.
* Before the proof the acceptor keeps one HELLO and looks one key up; a reason for a refusal
  is told only to an initiator that has proved itself.

These classes touch no socket and no clock. A frame of the wrong size, in the wrong order or
with the wrong content raises HandshakeError; the object is then of no further use.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import struct
from dataclasses import dataclass
from enum import IntEnum

VERSION = 1
_MAGIC = b"MCCLHS"
_HELLO = struct.Struct("!6sH16s16sQIIBBBx16sH16sH32s")
_CHALLENGE = struct.Struct("!32s32s")
_PROOF = struct.Struct("!32s")
_VERDICT = struct.Struct("!H32s")

HELLO_SIZE = _HELLO.size
CHALLENGE_SIZE = _CHALLENGE.size
PROOF_SIZE = _PROOF.size
VERDICT_SIZE = _VERDICT.size
NONCE_SIZE = 32
MAX_RAILS = 255


class HandshakeError(Exception):
    """The other end is not what it should be. The text is for logs, never for the other end."""


class Verdict(IntEnum):
    """What the acceptor says to an initiator that proved itself."""

    ADMITTED = 0
    WRONG_CHANNEL = 1
    DUPLICATE = 2
    WRONG_RANK = 3
    WRONG_ADDRESS = 4
    CLOSED = 5


REASONS = {
    Verdict.WRONG_CHANNEL: "it does not take connections of this kind (other version of mccl?)",
    Verdict.DUPLICATE: "this rank has connected already: two processes claim the same rank",
    Verdict.WRONG_RANK: "there is no such rank in the group: world sizes differ",
    Verdict.WRONG_ADDRESS: "it never announced the address that was dialled (a relay or address "
    "translation in between?)",
    Verdict.CLOSED: "it has left the group or the group is broken there",
}


class RejectedError(HandshakeError):
    """The acceptor authenticated us and said no."""

    def __init__(self, verdict: int) -> None:
        try:
            reason = REASONS[Verdict(verdict)]
        except (ValueError, KeyError):
            reason = f"reason {verdict}, unknown to this version of mccl"
        super().__init__(reason)
        self.verdict = verdict


@dataclass(frozen=True, slots=True)
class Claims:
    """What a connection is for; every field is authenticated."""

    job: bytes
    group: bytes
    epoch: int
    source: int
    destination: int
    channel: int
    rail: int
    rails: int
    source_address: tuple[str, int]
    destination_address: tuple[str, int]


def short_hash(text: str) -> bytes:
    """16 bytes that stand for a group's name or a job's token in a frame."""
    return hashlib.sha256(text.encode()).digest()[:16]


def derive_key(secret: bytes, job_token: str) -> bytes:
    """One key a job: the same MCCL_SECRET in two jobs gives two keys."""
    return hmac.digest(secret, b"mccl handshake v1|" + job_token.encode(), "sha256")


def normal_address(address: str) -> str:
    """Without a scope; IPv4-mapped IPv6 as IPv4."""
    parsed = ipaddress.ip_address(address.split("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped or parsed)


def _pack_ip(address: str) -> bytes:
    parsed = ipaddress.ip_address(normal_address(address))
    return parsed.packed if parsed.version == 6 else b"\0" * 10 + b"\xff\xff" + parsed.packed


def _unpack_ip(packed: bytes) -> str:
    return normal_address(str(ipaddress.IPv6Address(packed)))


def _mac(key: bytes, label: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, label + b"|" + b"".join(parts), "sha256")


class Initiator:
    """The end that connects: hello(), on_challenge() -> proof, on_verdict()."""

    def __init__(self, key: bytes, claims: Claims) -> None:
        self._key = key
        c = claims
        self._hello = _HELLO.pack(
            _MAGIC,
            VERSION,
            c.job,
            c.group,
            c.epoch,
            c.source,
            c.destination,
            c.channel,
            c.rail,
            c.rails,
            _pack_ip(c.source_address[0]),
            c.source_address[1],
            _pack_ip(c.destination_address[0]),
            c.destination_address[1],
            secrets.token_bytes(NONCE_SIZE),
        )
        self._transcript = b""

    def hello(self) -> bytes:
        return self._hello

    def on_challenge(self, frame: bytes) -> bytes:
        """Checks that the acceptor holds the secret; returns our proof."""
        if len(frame) != CHALLENGE_SIZE or self._transcript:
            raise HandshakeError(f"expected one challenge of {CHALLENGE_SIZE} bytes")
        nonce, mac = _CHALLENGE.unpack(frame)
        transcript = self._hello + nonce
        if not hmac.compare_digest(mac, _mac(self._key, b"acceptor", transcript)):
            raise HandshakeError("it does not hold this job's secret")
        self._transcript = transcript
        return _mac(self._key, b"initiator", transcript)

    def on_verdict(self, frame: bytes) -> None:
        """Returns when admitted; raises RejectedError with the acceptor's reason otherwise."""
        if len(frame) != VERDICT_SIZE or not self._transcript:
            raise HandshakeError(f"expected a verdict of {VERDICT_SIZE} bytes after the challenge")
        code, mac = _VERDICT.unpack(frame)
        expected = _mac(self._key, b"verdict", self._transcript, struct.pack("!H", code))
        if not hmac.compare_digest(mac, expected):
            raise HandshakeError("its verdict is not authentic")
        if code != Verdict.ADMITTED:
            raise RejectedError(code)


class Acceptor:
    """The end that listens: on_hello() -> claims, challenge(), on_proof(), verdict()."""

    def __init__(self) -> None:
        self._hello = b""
        self._transcript = b""
        self._key = b""
        self._proved = False

    def on_hello(self, frame: bytes) -> Claims:
        """The unproven claims: good for one look-up of the key, and nothing else."""
        if len(frame) != HELLO_SIZE or self._hello:
            raise HandshakeError(f"expected one greeting of {HELLO_SIZE} bytes")
        magic, version, job, group, epoch, src, dst, channel, rail, rails, *rest = _HELLO.unpack(
            frame
        )
        if magic != _MAGIC:
            raise HandshakeError("it does not speak the protocol of mccl")
        if version != VERSION:
            raise HandshakeError(
                f"it speaks handshake version {version}, this is version {VERSION}: install the "
                "same mccl everywhere"
            )
        if not rail < rails:
            raise HandshakeError(f"rail {rail} of {rails} makes no sense")
        self._hello = frame
        return Claims(
            job,
            group,
            epoch,
            src,
            dst,
            channel,
            rail,
            rails,
            (_unpack_ip(rest[0]), rest[1]),
            (_unpack_ip(rest[2]), rest[3]),
        )

    def challenge(self, key: bytes) -> bytes:
        if not self._hello or self._transcript:
            raise HandshakeError("a challenge follows one greeting")
        self._key = key
        nonce = secrets.token_bytes(NONCE_SIZE)
        self._transcript = self._hello + nonce
        return _CHALLENGE.pack(nonce, _mac(key, b"acceptor", self._transcript))

    def on_proof(self, frame: bytes) -> None:
        if len(frame) != PROOF_SIZE or not self._transcript or self._proved:
            raise HandshakeError(f"expected one proof of {PROOF_SIZE} bytes")
        expected = _mac(self._key, b"initiator", self._transcript)
        if not hmac.compare_digest(frame, expected):
            raise HandshakeError("it does not hold this job's secret")
        self._proved = True

    def verdict(self, verdict: Verdict) -> bytes:
        if not self._proved:
            raise HandshakeError("a verdict follows the proof")
        code = struct.pack("!H", verdict)
        return _VERDICT.pack(verdict, _mac(self._key, b"verdict", self._transcript, code))
