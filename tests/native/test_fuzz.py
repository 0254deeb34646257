"""A short run of every fuzz target over its corpus; docs/security.md tells of the long ones."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from . import native_build

TARGETS = sorted(path.stem for path in (native_build.ROOT / "native/fuzz").glob("fuzz_*.cc"))
RUNS = 30_000


def _missing() -> str | None:
    if sys.platform != "linux":
        return "the fuzz targets divert system calls with GNU ld's --wrap: Linux only"
    if shutil.which("clang++") is None:
        return "libFuzzer comes with clang: no clang++ on PATH"
    return None


MISSING = _missing()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.timeout(native_build.BUILD_SECONDS + native_build.TEST_SECONDS),
]


@pytest.fixture(scope="module")
def built() -> Path:
    options = ["-DMCCL_FUZZ=ON", "-DCMAKE_CXX_COMPILER=clang++"]
    return native_build.build("native-fuzz", *options, targets=TARGETS) / "fuzz"


@pytest.mark.parametrize("target", TARGETS)
def test_a_short_run_finds_nothing(target: str, built: Path, tmp_path: Path) -> None:
    corpus = native_build.ROOT / "native/fuzz/corpus" / target.removeprefix("fuzz_")
    assert sum(1 for _ in corpus.iterdir()) >= 10
    found = tmp_path / "found"  # libFuzzer writes what it learns into the first directory
    found.mkdir()
    limits = [f"-runs={RUNS}", "-max_total_time=12", "-max_len=600", "-entropic=0", "-seed=1"]
    command = [str(built / target), *limits, f"-artifact_prefix={tmp_path}/", str(found)]
    output = native_build.run([*command, str(corpus)], seconds=native_build.TEST_SECONDS)
    assert "Done " in output
    assert not list(tmp_path.glob("crash-*"))
