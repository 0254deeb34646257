"""The fault kit: what fires, when, and what a short storm makes of it."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from mccl.bench import cluster
from mccl.engine import Channel, NativeComm
from mccl.errors import CorruptError, MCCLError, PeerDiedError, UsageError
from mccl.testing import programs, storm
from mccl.testing.faults import Fault, Injector, Kind, read_marker
from mccl.testing.relay import Relay
from mccl.testing.trial import Trial, Verdict
from mccl.testing.trial import run as judge
from tests.process_group.ranks import run


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ({"kind": Kind.FLIP}, "say at which byte"),
        ({"kind": Kind.KILL, "collective": 0}, "collective 1 or later"),
        ({"kind": Kind.FLIP, "byte": 1, "bit": 8}, "bit 8"),
    ],
)
def test_a_fault_that_cannot_happen_is_refused(fault: dict[str, object], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Fault(**{"rank": 0, "collective": 1, **fault})  # type: ignore[arg-type]


def test_a_host_is_unplugged_by_whoever_made_the_network(tmp_path: Path) -> None:
    fault = Fault(Kind.UNPLUG, rank=0, collective=1)
    with pytest.raises(UsageError, match="say how"):
        Injector(fault, 0, tmp_path / "fired")


class Wire:
    """A relay with plain sockets for engine and peer."""

    def __init__(self) -> None:
        inside, self.peer = socket.socketpair()
        self.starts: list[int] = []
        self.relay = Relay(inside.detach(), 1, Channel.COLLECTIVE_TX, self.leaving)
        self.engine = socket.socket(fileno=self.relay.engine_fd)
        self.engine.settimeout(20)
        self.peer.settimeout(20)
        self.blocked = threading.Event()

    def leaving(self, relay: Relay, start: int, data: bytes) -> bytes:
        self.starts.append(start)
        if b"!" in data:
            relay.cut(both_ways=False)
            self.blocked.set()
        return data.upper()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.relay.reset()
    made.engine.close()
    made.peer.close()


def test_a_relay_passes_both_ways_and_ends_with_its_ends(wire: Wire) -> None:
    wire.engine.sendall(b"out")
    assert wire.peer.recv(10) == b"OUT"
    wire.peer.sendall(b"in")
    assert wire.engine.recv(10) == b"in"
    wire.engine.sendall(b"more")
    assert wire.peer.recv(10) == b"MORE"
    wire.relay.mark()
    wire.engine.sendall(b"last")
    assert wire.peer.recv(10) == b"LAST"
    assert wire.starts == [0, 3, 0]
    wire.peer.close()
    assert wire.engine.recv(10) == b""


def test_a_cut_relay_holds_what_leaves_and_nothing_else(wire: Wire) -> None:
    wire.engine.sendall(b"stay!")
    assert wire.blocked.wait(20)
    wire.peer.sendall(b"in")
    assert wire.engine.recv(10) == b"in"
    wire.peer.setblocking(False)
    with pytest.raises(BlockingIOError):
        wire.peer.recv(10)


def test_a_reset_relay_resets_its_engine(wire: Wire) -> None:
    wire.relay.reset()
    with pytest.raises(ConnectionResetError):
        wire.engine.recv(10)
    assert wire.peer.recv(10) == b""  # a Unix socket knows no reset


def one_fault(rank: int, n: int, kind: Kind, byte: int | None, marker: str) -> tuple[str, int]:
    fault = Fault(kind, rank=1, collective=3, byte=byte, peer=0, bit=2)
    before = NativeComm.submit
    with Injector(fault, rank, Path(marker)) as injector:
        dist.init_process_group("mccl", rank=rank, world_size=n)
        for number in range(1, 6):
            tensor = torch.full((1000,), float(rank + 1))
            try:
                dist.all_reduce(tensor)
            except MCCLError as error:
                assert number >= 3
                assert injector.fired == (rank == 1)
                return type(error).__name__, -1 if error.peer is None else error.peer
            assert bool((tensor == 3).all())
    assert NativeComm.submit is before
    return "", -1


def test_a_fault_fires_at_its_collective(tmp_path: Path) -> None:
    marker = tmp_path / "fired"
    args = (Kind.KILL, None, str(marker))
    results = run(2, one_fault, *args, group=False, may_die={1})
    assert results[0] == (PeerDiedError.__name__, 1)
    assert read_marker(marker) is not None


def test_a_flipped_bit_is_found_and_its_link_named(tmp_path: Path) -> None:
    marker = tmp_path / "fired"
    args = (Kind.FLIP, 500, str(marker))
    results = run(2, one_fault, *args, group=False, env={"MCCL_CHECKSUM": "1"})
    assert results[0] == (CorruptError.__name__, 1)
    assert results[1][0] == CorruptError.__name__
    found = read_marker(marker)
    assert found is not None
    assert found.peer == 0


def test_a_fault_that_does_not_fire_is_seen(tmp_path: Path) -> None:
    args = (Kind.FLIP, 10**9, str(tmp_path / "fired"))
    assert run(2, one_fault, *args, group=False) == [("", -1)] * 2
    assert read_marker(tmp_path / "fired") is None


def train(rank: int, n: int) -> list[bool]:
    return [good for _, good in programs.training(rank, n, random.Random(0))]


@pytest.mark.parametrize("world", [3, 5, 6, 7])
def test_training_is_right_where_a_share_is_not_exact(world: int) -> None:
    assert run(world, train) == [[True] * programs.STEPS] * world


def test_a_wrong_gradient_is_seen_at_any_number_of_ranks() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    for world, off in ((4, 2.0**-23), (7, 2.0**-18)):
        weight.grad = torch.tensor([1.0, 1.0 + off])
        assert not programs._right(weight, 1.0, world)


def test_a_storm_is_seeded() -> None:
    kinds = list(Kind)
    drawn = [storm.draw(3, number, (2, 3), kinds) for number in range(20)]
    assert drawn == [storm.draw(3, number, (2, 3), kinds) for number in range(20)]
    assert drawn != [storm.draw(4, number, (2, 3), kinds) for number in range(20)]
    assert {trial.fault.kind for trial in drawn} == set(kinds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Kind.KILL, Kind.RESET, Kind.FLIP, Kind.SLOW])
def test_a_trial_is_judged(kind: Kind) -> None:
    trial = storm.draw(1, 0, (2,), [kind])
    trial = replace(trial, program="collectives")
    verdict = judge(trial)
    assert verdict.good, verdict
    assert verdict.fired


@pytest.mark.skipif(cluster.missing() is not None, reason=f"{cluster.missing()}")
def test_a_host_that_is_unplugged_is_named_by_all_others() -> None:
    fault = Fault(Kind.UNPLUG, rank=1, collective=3, byte=40)
    verdict = judge(Trial("1", 3, "collectives", fault))
    assert verdict.good, verdict
    assert len(verdict.blamed) == 3


@pytest.mark.slow
@pytest.mark.parametrize("program", ["collectives", "training"])
def test_a_storm_finds_a_wrong_result(program: str) -> None:
    fault = Fault(Kind.FLIP, rank=0, collective=4, byte=40_000, bit=6)
    verdict = judge(Trial("1", 2, program, fault, checksum=False))
    assert verdict.fired
    assert verdict.wrong
    assert not verdict.good


def test_a_storm_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    played: list[Trial] = []

    def play(trial: Trial) -> Verdict:
        played.append(trial)
        return Verdict(trial, True, blamed=[True], seconds=[0.5], texts=["rank 0: é"])

    monkeypatch.setattr(storm, "run", play)
    words = ["--kinds", "kill", "flip", "--out", str(tmp_path / "storm.jsonl"), "--faults"]
    assert storm.main([*words, "3"]) == 0
    assert storm.main([*words, "5", "--jobs", "2"]) == 0
    assert [storm.draw(1, n, range(2, 5), [Kind.KILL, Kind.FLIP]) for n in range(5)] == sorted(
        played, key=lambda trial: trial.seed
    )
    assert "5/5" in capsys.readouterr().out
    with pytest.raises(UsageError, match="is another one"):
        storm.main([*words, "5", "--seed", "2"])
    assert storm.main([*words, "9", "--minutes", "-1"]) == 0
    assert len(played) == 5
    storm.write(tmp_path / "storm.jsonl", 9, Verdict(played[0], True, hung=[1]))
    assert storm.main([*words, "5"]) == 1


def test_a_bad_trial_is_told_from_a_good_one() -> None:
    trial = storm.draw(1, 0, (2,), [Kind.KILL])
    for changes in ({"hung": [1]}, {"wrong": ["#1"]}, {"quiet": [0]}, {"alarms": ["x"]},
                    {"blamed": [True, False]}):  # fmt: skip
        assert not Verdict(trial, True, **changes).good  # type: ignore[arg-type]
    assert Verdict(trial, True, blamed=[True], seconds=[0.5]).good
    assert not Verdict(trial, False).good
    assert "1/2" in storm.report([Verdict(trial, True, blamed=[True, False])])
