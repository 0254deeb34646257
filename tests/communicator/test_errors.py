"""The taxonomy: what a program that catches c10d's exceptions sees."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest
import torch.distributed as dist

from mccl import errors


@dataclass(frozen=True)
class Native:
    failure: int
    culprit: int = -1
    reporter: int = -1
    collective: int = 255
    sequence: int = 0
    waited_us: int = 0
    phase: str = ""
    message: str = ""


EXPECTED = {
    1: errors.PeerDiedError,
    2: errors.PeerSilentError,
    3: errors.PeerLeftError,
    4: errors.CollectiveTimeoutError,
    5: errors.MismatchError,
    6: errors.CorruptError,
    7: errors.AbortedError,
    8: errors.RemoteError,
    9: errors.InternalError,
}


@pytest.mark.parametrize(("failure", "kind"), EXPECTED.items())
def test_each_native_failure_has_its_exception(failure: int, kind: type[errors.MCCLError]) -> None:
    error = errors.from_native(Native(failure, message="x"))
    assert type(error) is kind
    assert isinstance(error, dist.DistBackendError)
    assert "what to do" in str(error)


def test_a_failure_from_the_future_is_internal() -> None:
    assert type(errors.from_native(Native(99))) is errors.InternalError


def test_attributes_and_message_name_the_culprit() -> None:
    native = Native(
        1,
        culprit=2,
        reporter=1,
        collective=0,
        sequence=17,
        waited_us=1_250_000,
        phase="receive",
        message="connection reset",
    )
    error = errors.from_native(
        native,
        rank=4,
        group="dp",
        labels={2: "mac-17 (10.0.0.17) pid 42", 1: "mac-16 (10.0.0.16) pid 41"},
        global_ranks=[4, 5, 9],
    )
    assert (error.rank, error.peer, error.host) == (4, 9, "mac-17 (10.0.0.17) pid 42")
    assert (error.collective, error.sequence, error.phase) == ("all_reduce", 17, "receive")
    assert error.waited == pytest.approx(1.25)
    text = str(error)
    for part in ("rank 9 on mac-17", "noticed by rank 5", "all_reduce #17", "1.250 s", "'dp'"):
        assert part in text


def test_unknown_attributes_are_none() -> None:
    error = errors.from_native(Native(7, message="abort() was called"))
    assert (error.rank, error.host, error.peer) == (None, None, None)
    assert (error.collective, error.sequence, error.phase, error.waited) == (None,) * 4


def test_classes_fit_c10d_and_builtins() -> None:
    assert issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.MismatchError, errors.UsageError)
    assert issubclass(errors.ConnectError, dist.DistNetworkError)
    assert issubclass(errors.StoreError, dist.DistStoreError)
    for kind in EXPECTED.values():
        assert issubclass(kind, errors.MCCLError)


def test_a_connection_failure_is_a_connect_error() -> None:
    assert type(errors.from_native(Native(9, phase="connect"))) is errors.ConnectError
    assert type(errors.from_native(Native(9, phase="store"))) is errors.StoreError


def test_errors_survive_pickling() -> None:
    error = errors.ConnectError("no", rank=1, peer=2, waited=0.5)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is errors.ConnectError
    assert (str(again), again.rank, again.peer, again.waited) == ("no", 1, 2, 0.5)


def test_what_the_message_says_already_is_not_said_again() -> None:
    native = Native(1, culprit=2, message="rank 2 (mac-2 (10.0.0.2) pid 7): closed")
    text = str(errors.from_native(native, labels={2: "mac-2 (10.0.0.2) pid 7"}))
    assert text.count("mac-2") == 1
    # A group rank in the engine's words is not the rank the user knows.
    text = str(errors.from_native(native, global_ranks=[4, 5, 9]))
    assert "culprit: rank 9" in text
