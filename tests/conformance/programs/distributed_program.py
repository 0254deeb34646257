"""Torch's DistributedTest, rewritten in memory so that mccl takes Gloo's place.

Run by ``tests.conformance`` through pytest, with ``BACKEND``, ``WORLD_SIZE``, ``TEMP_DIR`` and
``CONFORMANCE_FOLDER`` (where the rewritten source lies) in the environment. The rewriting puts
``"mccl"`` wherever the file says ``"gloo"``, so that tests and skips meant for Gloo apply to
mccl. Ranks come from a fork server that has imported torch once.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.multiprocessing
from torch.testing._internal import common_distributed

BACKEND = os.environ["BACKEND"]
if BACKEND == "mccl":
    import mccl  # noqa: F401 - registers the backend in ranks too

    for feature in ("ddp", "subgroup", "plugin", "gpu", "cuda"):
        common_distributed.DistTestCases.backend_feature[feature].add("mccl")

sys.path.insert(0, os.environ["CONFORMANCE_FOLDER"])

from rewritten_distributed_test import DistributedTest, TestDistBackend  # noqa: E402

TEMP_DIR_NOTE = Path(os.environ["CONFORMANCE_FOLDER"]) / "temp_dir"
PRELOAD = ["torch", "torch.distributed", "rewritten_distributed_test", "distributed_program"]


class TestConformance(TestDistBackend, DistributedTest._DistTestBase):  # type: ignore[misc]
    """All of DistributedTest."""

    @classmethod
    def _run(
        cls, rank: int, test_name: str, file_name: str, pipe: object, **kwargs: object
    ) -> None:
        # The fork server's environment is that of its start; each test has its own folder.
        os.environ["TEMP_DIR"] = TEMP_DIR_NOTE.read_text()
        super()._run(rank, test_name, file_name, pipe, **kwargs)

    def setUp(self) -> None:
        super().setUp()
        TEMP_DIR_NOTE.write_text(os.environ["TEMP_DIR"])
        torch.multiprocessing.set_start_method("forkserver", force=True)
        context = torch.multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self._start_processes(context.Process)
