"""The handshake under seeded mutation: never admitted, one type of exception, bounded memory.

The attacker has recorded genuine handshakes of the same job, can connect as often as it likes,
and changes what passes; it does not have the key. Every trial is a function of its number, so
a failure names the trial that repeats it.
"""

from __future__ import annotations

import random
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator

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
from mccl.communicator.interfaces import Address
from mccl.communicator.listener import Limits, Listener, Registration

KEY = hs.derive_key(b"correct horse", "token")
OTHER_KEY = hs.derive_key(b"battery staple", "token")
JOB, GROUP = hs.short_hash("token"), hs.short_hash("g")
CLAIMS = Claims(JOB, GROUP, 1, 1, 0, 0, 0, 1, ("0.0.0.0", 0), ("0.0.0.0", 0))
TRIALS = 20_000


def transcript() -> list[bytes]:
    """The four frames of one genuine handshake."""
    initiator, acceptor = Initiator(KEY, CLAIMS), Acceptor()
    acceptor.on_hello(initiator.hello())
    challenge = acceptor.challenge(KEY)
    proof = initiator.on_challenge(challenge)
    acceptor.on_proof(proof)
    return [initiator.hello(), challenge, proof, acceptor.verdict(Verdict.ADMITTED)]


RECORDED = [transcript() for _ in range(8)]


def flipped(rng: random.Random, frame: bytes) -> bytes:
    changed = bytearray(frame)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def spliced(rng: random.Random, frame: bytes) -> bytes:
    """The front of one frame, the back of another recorded one."""
    cut = rng.randrange(len(frame))
    other = rng.choice(rng.choice(RECORDED))
    return (frame[:cut] + other[cut:] + bytes(len(frame)))[: len(frame)]


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    flipped,
    spliced,
    lambda rng, frame: frame[: rng.randrange(len(frame))],
    lambda rng, frame: frame + rng.randbytes(rng.randrange(1, 64)),
    lambda rng, frame: rng.randbytes(len(frame)),
    lambda rng, frame: rng.randbytes(rng.randrange(512)),
    lambda rng, frame: bytes(len(frame)),
    lambda rng, frame: rng.choice(rng.choice(RECORDED)),
)


def mutated(rng: random.Random, frame: bytes) -> bytes:
    """Another frame than the one given."""
    while True:
        changed = rng.choice(MUTATIONS)(rng, frame)
        if changed != frame:
            return changed


def refused(call: Callable[[], object]) -> bool:
    """Whether it was refused; any other exception than HandshakeError fails the test."""
    try:
        call()
    except HandshakeError:
        return True
    return False


def replayed(rng: random.Random) -> list[bytes]:
    """What a stranger might send: recorded frames, changed, reordered, left out, made up."""
    frames = list(rng.choice(RECORDED))
    if rng.random() < 0.3:
        rng.shuffle(frames)
    if rng.random() < 0.3:
        frames[rng.randrange(4)] = rng.choice(rng.choice(RECORDED))
    return [frame if rng.random() < 0.5 else mutated(rng, frame) for frame in frames]


def test_one_changed_frame_in_passing_is_noticed() -> None:
    for trial in range(TRIALS):
        rng = random.Random(trial)
        where = rng.randrange(4)
        initiator, acceptor = Initiator(KEY, CLAIMS), Acceptor()

        def passing(index: int, frame: bytes, rng: random.Random = rng, at: int = where) -> bytes:
            return mutated(rng, frame) if index == at else frame

        done = ""
        try:
            acceptor.on_hello(passing(0, initiator.hello()))
            challenge = passing(1, acceptor.challenge(KEY))
            proof = passing(2, initiator.on_challenge(challenge))
            done = "initiator trusts"
            acceptor.on_proof(proof)
            done = "acceptor trusts"
            initiator.on_verdict(passing(3, acceptor.verdict(Verdict.ADMITTED)))
            done = "both trust"
        except RejectedError:
            pytest.fail(f"trial {trial}: a forged verdict was believed")
        except HandshakeError:
            pass
        # The end that gets the changed frame, and whoever would speak after it, must not go on.
        expected = ("", "", "initiator trusts", "acceptor trusts")[where]
        assert done == expected, f"trial {trial}: frame {where} was changed"


def test_no_replay_passes_the_acceptor() -> None:
    for trial in range(TRIALS):
        rng = random.Random(trial)
        acceptor = Acceptor()
        frames = replayed(rng)
        if refused(lambda a=acceptor, f=frames: a.on_hello(f[0])):  # type: ignore[misc]
            continue
        acceptor.challenge(KEY)
        for frame in frames[1:]:
            assert refused(lambda a=acceptor, f=frame: a.on_proof(f)), f"trial {trial}"  # type: ignore[misc]
            assert refused(lambda a=acceptor: a.verdict(Verdict.ADMITTED)), f"trial {trial}"  # type: ignore[misc]


def test_no_replay_passes_the_initiator() -> None:
    for trial in range(TRIALS):
        rng = random.Random(trial)
        initiator = Initiator(KEY, CLAIMS)
        stranger = Acceptor()
        stranger.on_hello(initiator.hello())
        frames = [*replayed(rng), stranger.challenge(OTHER_KEY), initiator.hello()]
        rng.shuffle(frames)
        for frame in frames:
            call = rng.choice((initiator.on_challenge, initiator.on_verdict))
            assert refused(lambda c=call, f=frame: c(f)), f"trial {trial}"  # type: ignore[misc]


def test_calls_in_any_order_prove_nothing() -> None:
    for trial in range(TRIALS // 4):
        rng = random.Random(trial)
        acceptor = Acceptor()
        for frame in replayed(rng) * 2:
            step = rng.randrange(4)
            if step == 0:
                refused(lambda a=acceptor, f=frame: a.on_hello(f))  # type: ignore[misc]
            elif step == 1:
                refused(lambda a=acceptor: a.challenge(KEY))  # type: ignore[misc]
            elif step == 2:
                assert refused(lambda a=acceptor, f=frame: a.on_proof(f)), f"trial {trial}"  # type: ignore[misc]
            else:
                assert refused(lambda a=acceptor: a.verdict(Verdict.ADMITTED)), f"trial {trial}"  # type: ignore[misc]


def test_a_frame_costs_no_memory_however_long_it_is() -> None:
    long = random.Random(1).randbytes(8 << 20)
    acceptor, initiator = Acceptor(), Initiator(KEY, CLAIMS)
    tracemalloc.start()
    try:
        for call in (acceptor.on_hello, initiator.on_challenge, initiator.on_verdict):
            assert refused(lambda c=call: c(long))  # type: ignore[misc]
        acceptor.on_hello(initiator.hello())
        acceptor.challenge(KEY)
        assert refused(lambda: acceptor.on_proof(long))
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


@pytest.fixture
def door() -> Iterator[tuple[Listener, int, list[Claims], threading.Event]]:
    """A listener with one registered group that notes whom it takes in."""
    taken: list[Claims] = []
    came = threading.Event()

    def take(claims: Claims, sock: socket.socket) -> None:
        sock.close()
        taken.append(claims)
        came.set()

    listener = Listener(limits=Limits(half_open=16, held=16, handshake_seconds=5.0))
    try:
        port = listener.bind([Address("127.0.0.1", 8)], "lo")[0][1]
        listener.register(
            Registration((GROUP, 1, 0), JOB, KEY, lambda claims: Verdict.ADMITTED, take)
        )
        yield listener, port, taken, came
    finally:
        listener.close()


def _attack(rng: random.Random, port: int) -> None:
    """One connection: replayed frames cut anywhere, with or without waiting for answers."""
    data = b"".join(replayed(rng))
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        try:
            while data:
                cut = rng.randrange(1, len(data) + 1)
                sock.sendall(data[:cut])
                data = data[cut:]
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
        except TimeoutError:
            raise
        except OSError:
            return  # dropped while we still talked


def test_the_listener_survives_mutated_handshakes_and_admits_none(
    door: tuple[Listener, int, list[Claims], threading.Event],
) -> None:
    listener, port, taken, came = door
    for trial in range(1_000):
        _attack(random.Random(trial), port)
        assert not taken, f"trial {trial}"
        assert len(listener._connections) <= 32
    initiator = Initiator(KEY, CLAIMS)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(initiator.hello())
        sock.sendall(initiator.on_challenge(sock.recv(hs.CHALLENGE_SIZE, socket.MSG_WAITALL)))
        initiator.on_verdict(sock.recv(hs.VERDICT_SIZE, socket.MSG_WAITALL))
        assert came.wait(10)
    assert len(taken) == 1
