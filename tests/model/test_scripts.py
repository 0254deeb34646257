"""The script that compares simulator and cluster, and the pipeline example."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from mccl import cli
from mccl.bench.record import Case, Record
from mccl.model import Network, all_reduce_seconds, blocks

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


@pytest.fixture
def script() -> ModuleType:
    """``bench/simulator_check.py``."""
    path = ROOT / "bench" / "simulator_check.py"
    spec = importlib.util.spec_from_file_location("simulator_check", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def record_of(network: Network, slower: float, groups: object = None) -> Record:
    """What a cluster that behaves like ``network`` would record, but for the largest size."""
    hosts = network.hosts
    record = Record("all_reduce")
    grouped = groups is not None
    for nbytes, algorithm in (
        (1024, "recursive_doubling"),
        (MIB, "two_level" if grouped else "ring"),
        (8 * MIB, "two_level" if grouped else "ring"),
    ):
        labels = {"ranks": hosts, "nbytes": nbytes}
        used = groups if algorithm == "two_level" else None
        seconds = all_reduce_seconds(algorithm, network, nbytes, groups=used)  # type: ignore[arg-type]
        seconds *= slower if nbytes == 8 * MIB else 1.0
        record.cases.append(Case("mccl", dict(labels), [[seconds]]))
        streamed = 2 * (hosts - 1) / hosts * nbytes / network.link
        record.cases.append(Case("tcp", dict(labels), [[streamed]]))
    return record


@pytest.mark.parametrize("group", [None, 4])
def test_comparison_finds_what_is_slower(
    script: ModuleType, tmp_path: Path, group: int | None
) -> None:
    network = Network(8, link=1e7, hop=1e-3)
    folder = tmp_path if group is None else tmp_path / f"groups-{group}"
    groups = None if group is None else blocks(8, group)
    record_of(network, 1.25, groups).save(folder / "record.json")
    found = script.compare(folder / "record.json")
    assert [c.algorithm for c in found] == ["two_level" if group else "ring"] * 2
    assert [c.error for c in found] == [
        pytest.approx(0.0, abs=2e-3),
        pytest.approx(-0.2, abs=2e-3),
    ]


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_pipeline_example(capfd: pytest.CaptureFixture[str]) -> None:
    path = str(ROOT / "examples" / "pipeline_inference.py")
    assert cli.main(["run", "-n", "2", path, "--tokens", "4"]) == 0
    assert "tokens equal those of one rank" in capfd.readouterr().out
