from __future__ import annotations

from collections.abc import Iterator

import pytest

from .fakes import FakeEngine


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    engine = FakeEngine()
    yield engine
    engine.queue.close()
