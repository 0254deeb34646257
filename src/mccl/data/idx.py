"""IDX files, the format of MNIST and its successors: a big-endian header, then raw bytes."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

PARTS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def _file(folder: Path, part: str) -> Path | None:
    names = (f"{part}-ubyte.gz", f"{part}-ubyte")
    return next((folder / name for name in names if (folder / name).is_file()), None)


def is_folder(folder: Path) -> bool:
    """Whether all four files are there, compressed or not."""
    return all(_file(folder, part) for part in PARTS)


def read(path: Path) -> np.ndarray:
    """The uint8 array in an IDX file, of whatever shape its header states.

    Raises:
        ValueError: the header is not that of unsigned bytes, or does not fit the length.
    """
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    # Magic: two zero bytes, 8 for unsigned bytes, the number of dimensions.
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError(f"{path.name} does not start like an IDX file of unsigned bytes")
    dimensions = data[3]
    start = 4 + 4 * dimensions
    shape = np.frombuffer(data[4:start], ">u4").astype(int)
    if len(data) - start != int(np.prod(shape)):
        raise ValueError(f"{path.name} has {len(data) - start} bytes for shape {tuple(shape)}")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_folder(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images ``(N, 1, H, W)`` and labels ``(N,)``, for training and for testing, as uint8."""
    arrays = [read(path) for part in PARTS if (path := _file(folder, part)) is not None]
    train, train_labels, test, test_labels = arrays
    if len(train) != len(train_labels) or len(test) != len(test_labels):
        raise ValueError("there are not as many labels as images")
    return train[:, None], train_labels, test[:, None], test_labels
