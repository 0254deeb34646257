"""The strategy "mccl" against the real Lightning, and two ranks against one process."""

from __future__ import annotations

import csv
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

if importlib.util.find_spec("lightning") is None:
    pytest.skip(
        "lightning is not installed: pip install 'mccl[lightning]'", allow_module_level=True
    )

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # up to three jobs a test

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("lightning_job.py")
SAMPLES = 32
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
STEPS_PER_EPOCH = 4


def python(*words: str, limit: float = 100) -> str:
    """Runs Python in a process group of its own, which is ended whatever happens."""
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": paths, "NCCL_SOCKET_IFNAME": "none0"}
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environ,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, output
    return output


def job(folder: Path, name: str, ranks: int, epochs: int, *launcher: str) -> list[dict[str, Any]]:
    """Each rank's result of one job of ``lightning_job.py``."""
    python(*launcher, str(JOB), str(folder), name, str(ranks), str(epochs))
    return [torch.load(folder / f"{name}.{rank}.pt") for rank in range(ranks)]


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name, weight in wanted.items():
        # fp32 and another order of adding: a few units in the last place over 12 steps.
        torch.testing.assert_close(found[name], weight, rtol=1e-5, atol=1e-6)


def rows(folder: Path, name: str, column: str) -> list[str]:
    """The non-empty values of a column in the one log that `name` wrote."""
    assert [path.name for path in (folder / "logs" / name).iterdir()] == ["version_0"]
    with (folder / "logs" / name / "version_0" / "metrics.csv").open() as file:
        return [row[column] for row in csv.DictReader(file) if row[column]]


def test_two_ranks_train_and_resume_like_one_process(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (alone,) = job(one, "whole", 1, 3)
    first = job(two, "first", 2, 2, *TORCHRUN)
    both = job(two, "resume", 2, 3, *TORCHRUN)

    for result in first + both:
        assert result["strategy"] == "MCCLStrategy"
        assert result["backend"] == "mccl"
        assert result["nccl"] == []
        assert result["integer_mean"] == 11
    # Resumed, not begun again: one more epoch of the three, and all the steps counted.
    assert [result["steps"] for result in both] == [3 * STEPS_PER_EPOCH] * 2
    assert [len(result["seen"]) for result in both] == [SAMPLES // 2] * 2
    # The sampler: every sample once an epoch, none on both ranks.
    assert sorted(both[0]["seen"] + both[1]["seen"]) == list(range(SAMPLES))

    assert_same(both[1]["weights"], both[0]["weights"])
    assert_same(both[0]["weights"], alone["weights"])
    for name in ("loss", "val"):
        for result in both:
            assert result["metrics"][name] == pytest.approx(alone["metrics"][name], rel=1e-5)
    # One log for both ranks, a line an epoch.
    assert len(rows(two, "first", "val")) == 2
    assert len(rows(two, "resume", "val")) == 1


def test_lightnings_own_launcher(tmp_path: Path) -> None:
    results = job(tmp_path, "first", 2, 1)
    assert [result["backend"] for result in results] == ["mccl", "mccl"]
    assert sorted(results[0]["seen"] + results[1]["seen"]) == list(range(SAMPLES))
    assert_same(results[1]["weights"], results[0]["weights"])


def test_fabric_trains_like_one_process(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (alone,) = job(one, "fabric", 1, 2)
    both = job(two, "fabric", 2, 2, *TORCHRUN)
    for result in both:
        assert result["strategy"] == "MCCLFabricStrategy"
        assert result["backend"] == "mccl"
        assert result["nccl"] == []
        assert_same(result["weights"], alone["weights"])
    assert sorted(both[0]["seen"] + both[1]["seen"]) == sorted(2 * list(range(SAMPLES)))


# Lightning believes that there is a Mac; nothing is put on the device.
ON_A_MAC = """
from unittest import mock
import lightning, torch
from lightning.fabric.accelerators.mps import MPSAccelerator
from mccl.integrations.lightning import MCCLStrategy

def there() -> bool:
    return True

with mock.patch.object(MPSAccelerator, "is_available", staticmethod(there)):
    for kind in (lightning.Trainer, lightning.Fabric):
        made = kind(strategy="mccl", accelerator="mps", devices=1, num_nodes=3)
        assert made.strategy.root_device == torch.device("mps", 0), made.strategy.root_device
        ids = getattr(made.strategy, "determine_ddp_device_ids", None)
        assert (ids or made.strategy._determine_ddp_device_ids)() is None
        assert made.strategy.process_group_backend == "mccl"
    assert made.world_size == 3
    try:
        lightning.Trainer(strategy=MCCLStrategy(), accelerator="mps", devices=1, num_nodes=3)
    except ValueError as error:  # why the documentation says: give the name
        assert "not supported on the MPS" in str(error), error
    else:
        raise AssertionError("lightning takes strategy objects on MPS now: say so in the docs")
"""


def test_a_name_passes_where_lightning_refuses_ddp_on_mps() -> None:
    python("-c", ON_A_MAC)


DEVICES = """
import torch
from mccl.errors import UsageError
from mccl.integrations import lightning as door

class Environment:
    def __init__(self, local_rank): self.rank = local_rank
    def local_rank(self): return self.rank

def strategy(kind, devices, local_rank):
    return kind(parallel_devices=devices, cluster_environment=Environment(local_rank))

gpus = [torch.device("cuda", 0), torch.device("cuda", 1)]
for kind in (door.MCCLStrategy, door.MCCLFabricStrategy):
    name = "determine_ddp_device_ids"
    ids = lambda s: getattr(s, name, None) or getattr(s, "_" + name)
    gpu = strategy(kind, gpus, 1)
    assert gpu.root_device == gpus[1] and ids(gpu)() == [1]
    # Several nodes of a scheduler on one machine: local ranks past the devices.
    mac = strategy(kind, [torch.device("mps", 0)], 2)
    assert mac.root_device == torch.device("mps", 0) and ids(mac)() is None
    cpu = strategy(kind, [torch.device("cpu")], 2)
    assert cpu.root_device == torch.device("cpu") and ids(cpu)() is None
    try:
        strategy(kind, gpus, 2).root_device
    except UsageError as error:
        assert "local rank 2 has no device" in str(error)
    else:
        raise AssertionError("a GPU that is not there")
    try:
        kind(process_group_backend="gloo")
    except UsageError as error:
        assert "'gloo'" in str(error)
    else:
        raise AssertionError("another backend was taken")

for name in ("my_ddp", "Mine", "fsdp"):
    try:
        door.register(name)
    except UsageError as error:
        assert repr(name) in str(error)
    else:
        raise AssertionError(name)
assert door.register("mccl") == door.register("mccl") == "mccl"

for found in (None, "2.3.9", "1.9.5"):
    try:
        door.check_version(found)
    except ImportError as error:
        assert "pip install 'mccl[lightning]'" in str(error), error
        assert (found or "not installed") in str(error), error
    else:
        raise AssertionError(found)
for found in ("2.4.0", "2.6.6", "2.10.0", "3.0.0rc1"):
    door.check_version(found)
"""


def test_devices_names_and_versions() -> None:
    python("-c", DEVICES)


def test_missing_lightning_is_named() -> None:
    code = """
import importlib.metadata as metadata
real = metadata.version
def version(name):
    if name == "lightning":
        raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
try:
    import mccl.integrations.lightning
except ImportError as error:
    assert error.name == "lightning" and "which is not installed" in str(error), error
else:
    raise AssertionError("imported without lightning")
"""
    python("-c", code)
