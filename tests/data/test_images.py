"""Data sets: found where they lie, read right, and a clear word where they do not."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from mccl.data import DataError, images, load_images
from mccl.data.cifar import TRAIN
from mccl.data.idx import PARTS


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No data set of this machine is found."""
    monkeypatch.setattr(images, "FASHION_FOLDERS", ())
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))


def write_idx(folder: Path, *, compress: bool) -> np.ndarray:
    pixels = np.arange(6 * 4 * 4, dtype=np.uint8).reshape(6, 4, 4)
    labels = np.arange(6, dtype=np.uint8)
    folder.mkdir(exist_ok=True)
    for part, array in zip(PARTS, (pixels, labels, pixels, labels), strict=True):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        data = header + array.tobytes()
        name = f"{part}-ubyte" + (".gz" if compress else "")
        (folder / name).write_bytes(gzip.compress(data) if compress else data)
    return pixels


def write_cifar(folder: Path, *, binary: bool) -> np.ndarray:
    folder.mkdir()
    rng = np.random.default_rng(0)
    first = None
    for name in (*TRAIN, "test_batch"):
        pixels = rng.integers(0, 256, (3, 3072), dtype=np.uint8)
        first = pixels if first is None else first
        labels = np.array([1, 2, 3], np.uint8)
        if binary:
            (folder / f"{name}.bin").write_bytes(np.hstack([labels[:, None], pixels]).tobytes())
        else:
            batch = {b"data": pixels, b"labels": labels.tolist()}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    assert first is not None
    return first.reshape(3, 3, 32, 32)


def test_digits_are_always_there() -> None:
    data = load_images()
    assert data.name == "digits"
    assert data.train.shape == (1437, 1, 8, 8)
    assert data.test.shape == (360, 1, 8, 8)
    assert abs(float(data.train.mean())) < 1e-5
    assert sorted(set(data.test_labels.tolist())) == list(range(10))
    assert "scikit-learn" in str(data)


@pytest.mark.parametrize("compress", [True, False])
def test_idx_folder_is_found_and_read(tmp_path: Path, compress: bool) -> None:
    pixels = write_idx(tmp_path / "fashion-mnist", compress=compress)
    data = load_images("auto", folders=[tmp_path])
    assert data.name == "Fashion-MNIST"
    raw = torch.from_numpy(pixels).float()
    torch.testing.assert_close(data.train[:, 0], (raw - raw.mean()) / raw.std())
    assert data.train_labels.tolist() == list(range(6))


@pytest.mark.parametrize("binary", [True, False])
def test_cifar_folder_comes_first(tmp_path: Path, binary: bool) -> None:
    write_idx(tmp_path / "fashion-mnist", compress=True)
    pixels = write_cifar(tmp_path / f"cifar-10-batches-{'bin' if binary else 'py'}", binary=binary)
    data = load_images("auto", folders=[tmp_path])
    assert data.name == "CIFAR-10"
    assert data.train.shape == (15, 3, 32, 32)
    shown = torch.from_numpy(pixels.astype(np.float32))
    ratio = (data.train[:3] - data.train[0, 0, 0, 0]) / (shown - shown[0, 0, 0, 0])
    assert torch.nanmean(ratio) == pytest.approx(float(ratio[0, 0, 0, 1]), rel=1e-3)


def test_hostile_pickle_is_refused(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, ...]:
            return (print, ("called",))

    write_cifar(tmp_path / "c", binary=False)
    (tmp_path / "c" / "data_batch_1").write_bytes(pickle.dumps({b"data": Hostile()}))
    with pytest.raises(DataError, match="refused"):
        load_images(f"cifar10:{tmp_path / 'c'}")


def test_resize() -> None:
    assert load_images("digits", size=16).train.shape == (1437, 1, 16, 16)
    assert load_images("digits", size=4).test.shape == (360, 1, 4, 4)


def test_truncated_file_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path, compress=False)
    file = tmp_path / f"{PARTS[0]}-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="train-images-idx3-ubyte has 95 bytes"):
        load_images(f"fashion-mnist:{tmp_path}")


@pytest.mark.parametrize(
    ("choice", "said"),
    [("imagenet", "expected auto, cifar10"), ("cifar10:/nonexistent", "looked in /nonexistent")],
)
def test_nothing_found_says_where(choice: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        load_images(choice)
