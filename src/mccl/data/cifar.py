"""CIFAR-10 as its authors publish it: Python pickles or the binary version."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

TRAIN = tuple(f"data_batch_{n}" for n in range(1, 6))
RECORD = 1 + 3 * 32 * 32


class _ArraysOnly(pickle.Unpickler):
    """Loads arrays and plain containers, and refuses to call anything else."""

    ALLOWED = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise ValueError(f"its pickle wants to call {module}.{name}; refused")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def is_folder(folder: Path) -> bool:
    """Whether the folder holds all batches of either version."""
    names = (*TRAIN, "test_batch")
    return any(
        all((folder / f"{name}{suffix}").is_file() for name in names) for suffix in ("", ".bin")
    )


def _read_batch(path: Path) -> tuple[np.ndarray, np.ndarray]:
    data = path.read_bytes()
    if path.suffix == ".bin":
        if len(data) % RECORD:
            raise ValueError(f"{path.name} has {len(data)} bytes, not a multiple of {RECORD}")
        records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
        return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]
    batch = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
    pixels = np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32)
    return pixels, np.asarray(batch[b"labels"], np.uint8)


def read(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images ``(N, 3, 32, 32)`` and labels ``(N,)``, for training and for testing, as uint8.

    Raises:
        ValueError, KeyError: a file is not a CIFAR-10 batch.
    """
    suffix = "" if (folder / "test_batch").is_file() else ".bin"
    batches = [_read_batch(folder / f"{name}{suffix}") for name in TRAIN]
    test, test_labels = _read_batch(folder / f"test_batch{suffix}")
    train = np.concatenate([pixels for pixels, _ in batches])
    return train, np.concatenate([labels for _, labels in batches]), test, test_labels
