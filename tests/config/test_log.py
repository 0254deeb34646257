"""Logging: level from the configuration, rank in front, an application's handlers untouched."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from mccl import log
from mccl.config import Config


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("mccl")
    before = (found.level, list(found.handlers), found.propagate)
    found.handlers.clear()
    found.propagate = True
    yield found
    found.setLevel(before[0])
    found.handlers[:] = before[1]
    found.propagate = before[2]


def test_rank_room_and_level(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own
    log.setup(Config(log_level="INFO"), rank=3)
    log.setup(Config(log_level="INFO"), rank=3)
    logging.getLogger("mccl.communicator").info("rail en0")
    logging.getLogger("mccl.communicator").debug("not shown")
    assert capsys.readouterr().err == "[mccl 3] INFO communicator: rail en0\n"


def test_handler_of_the_application_is_kept(logger: logging.Logger) -> None:
    mine = logging.NullHandler()
    logger.addHandler(mine)
    log.setup(Config(log_level="ERROR"))
    assert logger.handlers == [mine]
    assert logger.level == logging.ERROR
