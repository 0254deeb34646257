"""The handshake without sockets: only holders of the secret pass, and only as themselves."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mccl.communicator import handshake as hs
from mccl.communicator.handshake import (
    Acceptor,
    Claims,
    HandshakeError,
    Initiator,
    RejectedError,
    Verdict,
)

KEY = hs.derive_key(b"correct horse", "token")
CLAIMS = Claims(
    job=hs.short_hash("token"),
    group=hs.short_hash("g"),
    epoch=3,
    source=1,
    destination=2,
    channel=0,
    rail=0,
    rails=2,
    source_address=("10.0.0.1", 4000),
    destination_address=("fd00::2", 4001),
)


def meet(
    key_i: bytes = KEY, key_a: bytes = KEY, verdict: Verdict = Verdict.ADMITTED
) -> tuple[Claims, list[bytes]]:
    initiator, acceptor = Initiator(key_i, CLAIMS), Acceptor()
    frames = [initiator.hello()]
    claims = acceptor.on_hello(frames[0])
    frames.append(acceptor.challenge(key_a))
    frames.append(initiator.on_challenge(frames[1]))
    acceptor.on_proof(frames[2])
    frames.append(acceptor.verdict(verdict))
    initiator.on_verdict(frames[3])
    return claims, frames


def test_members_meet_and_every_claim_arrives() -> None:
    claims, frames = meet()
    assert claims == CLAIMS
    assert [len(f) for f in frames] == [
        hs.HELLO_SIZE,
        hs.CHALLENGE_SIZE,
        hs.PROOF_SIZE,
        hs.VERDICT_SIZE,
    ]


def test_initiator_refuses_an_acceptor_with_another_secret() -> None:
    with pytest.raises(HandshakeError, match="secret"):
        meet(key_a=hs.derive_key(b"battery staple", "token"))


def test_acceptor_refuses_an_initiator_with_another_secret() -> None:
    initiator, acceptor = Initiator(KEY, CLAIMS), Acceptor()
    acceptor.on_hello(initiator.hello())
    acceptor.challenge(KEY)
    with pytest.raises(HandshakeError, match="secret"):
        acceptor.on_proof(bytes(hs.PROOF_SIZE))
    with pytest.raises(HandshakeError):
        acceptor.verdict(Verdict.ADMITTED)


def test_one_secret_in_two_jobs_gives_two_keys() -> None:
    assert hs.derive_key(b"s3cret-s3cret", "a") != hs.derive_key(b"s3cret-s3cret", "b")


def test_a_recorded_transcript_does_not_fit_again() -> None:
    _, frames = meet()
    acceptor = Acceptor()
    acceptor.on_hello(frames[0])
    assert acceptor.challenge(KEY) != frames[1]
    with pytest.raises(HandshakeError):
        acceptor.on_proof(frames[2])


def test_a_recorded_challenge_does_not_fit_a_new_initiator() -> None:
    _, frames = meet()
    with pytest.raises(HandshakeError):
        Initiator(KEY, CLAIMS).on_challenge(frames[1])


def test_reflected_frames_are_refused() -> None:
    initiator, acceptor = Initiator(KEY, CLAIMS), Acceptor()
    acceptor.on_hello(initiator.hello())
    challenge = acceptor.challenge(KEY)
    with pytest.raises(HandshakeError):
        acceptor.on_proof(challenge[-hs.PROOF_SIZE :])
    with pytest.raises(HandshakeError):
        initiator.on_challenge(initiator.hello()[: hs.CHALLENGE_SIZE])


@pytest.mark.parametrize(
    "change",
    [
        {"job": hs.short_hash("other")},
        {"group": hs.short_hash("h")},
        {"epoch": 4},
        {"source": 0},
        {"destination": 3},
        {"channel": 4},
        {"rail": 1},
        {"rails": 3},
        {"source_address": ("10.0.0.9", 4000)},
        {"destination_address": ("fd00::2", 4002)},
    ],
)
def test_a_proof_is_worth_nothing_for_other_claims(change: dict[str, object]) -> None:
    """A man in the middle changes one claim of the greeting on its way."""
    initiator = Initiator(KEY, CLAIMS)
    changed = Initiator(KEY, replace(CLAIMS, **change))  # type: ignore[arg-type]
    nonce = initiator.hello()[-hs.NONCE_SIZE :]
    acceptor = Acceptor()
    acceptor.on_hello(changed.hello()[: -hs.NONCE_SIZE] + nonce)
    challenge = acceptor.challenge(KEY)
    with pytest.raises(HandshakeError):
        initiator.on_challenge(challenge)


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.ADMITTED])
def test_a_refusal_gives_its_reason_to_a_member(verdict: Verdict) -> None:
    with pytest.raises(RejectedError) as info:
        meet(verdict=verdict)
    assert info.value.verdict == verdict
    assert str(info.value) == hs.REASONS[verdict]


def test_a_forged_verdict_is_refused() -> None:
    initiator, acceptor = Initiator(KEY, CLAIMS), Acceptor()
    acceptor.on_hello(initiator.hello())
    acceptor.on_proof(initiator.on_challenge(acceptor.challenge(KEY)))
    refusal = acceptor.verdict(Verdict.DUPLICATE)
    with pytest.raises(HandshakeError, match="not authentic"):
        initiator.on_verdict(b"\0\0" + refusal[2:])


def test_frames_out_of_order_are_refused() -> None:
    with pytest.raises(HandshakeError):
        Acceptor().challenge(KEY)
    with pytest.raises(HandshakeError):
        Acceptor().on_proof(bytes(hs.PROOF_SIZE))
    with pytest.raises(HandshakeError):
        Acceptor().verdict(Verdict.ADMITTED)
    with pytest.raises(HandshakeError):
        Initiator(KEY, CLAIMS).on_verdict(bytes(hs.VERDICT_SIZE))
    acceptor = Acceptor()
    acceptor.on_hello(Initiator(KEY, CLAIMS).hello())
    with pytest.raises(HandshakeError):
        acceptor.on_hello(Initiator(KEY, CLAIMS).hello())


def test_another_version_is_named() -> None:
    hello = bytearray(Initiator(KEY, CLAIMS).hello())
    hello[7] = 9
    with pytest.raises(HandshakeError, match="version 9"):
        Acceptor().on_hello(bytes(hello))


def test_random_and_truncated_bytes_never_pass() -> None:
    """Seeded; every frame of a real handshake is cut, flipped or replaced."""
    rng = random.Random(7)
    for _ in range(3000):
        initiator, acceptor = Initiator(KEY, CLAIMS), Acceptor()
        hello = initiator.hello()
        acceptor.on_hello(hello)
        challenge = acceptor.challenge(KEY)
        with pytest.raises(HandshakeError):
            initiator.on_challenge(_spoil(rng, challenge))
        proof = initiator.on_challenge(challenge)
        with pytest.raises(HandshakeError):
            acceptor.on_proof(_spoil(rng, proof))
    for _ in range(3000):
        junk = rng.randbytes(rng.choice((0, 1, hs.HELLO_SIZE - 1, hs.HELLO_SIZE, 300)))
        with pytest.raises(HandshakeError):
            Acceptor().on_hello(junk)


def _spoil(rng: random.Random, frame: bytes) -> bytes:
    how = rng.randrange(3)
    if how == 0:
        return frame[: rng.randrange(len(frame))]
    if how == 1:
        bit = rng.randrange(len(frame) * 8)
        spoiled = bytearray(frame)
        spoiled[bit // 8] ^= 1 << bit % 8
        return bytes(spoiled)
    return rng.randbytes(len(frame))
