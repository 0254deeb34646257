"""Small labelled images: CIFAR-10, Fashion-MNIST or scikit-learn's digits, whichever is at hand.

``auto`` takes the first that is found, the richest first:

1. CIFAR-10, a folder ``cifar-10-batches-py`` or ``cifar-10-batches-bin``;
2. Fashion-MNIST, four IDX files (Debian's package ``dataset-fashion-mnist`` has them);
3. digits: 1797 real 8x8 images that ship inside scikit-learn, so there is always one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from mccl.data import cifar, idx

FASHION_FOLDERS = (Path("/usr/share/datasets/fashion-mnist"), Path("/usr/share/fashion-mnist"))
CIFAR_NAMES = ("cifar-10-batches-py", "cifar-10-batches-bin")


class DataError(ValueError):
    """A data set is not there or not readable; the text says what was looked for and where."""


@dataclass(frozen=True, slots=True)
class Images:
    """A data set in memory.

    ``train`` and ``test`` are float32 ``(N, channels, size, size)``, with mean 0 and variance 1
    over the training images; labels are int64 ``(N,)`` from 0 to ``classes - 1``.
    """

    name: str
    source: str
    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor
    classes: int

    def __str__(self) -> str:
        n, channels, height, width = self.train.shape
        shape = f"{height}x{width}, {'colour' if channels == 3 else 'grey'}"
        return f"{self.name} ({n} + {len(self.test)} images, {shape}) from {self.source}"


def load_images(choice: str = "auto", *, folders: Sequence[Path] = (), size: int = 0) -> Images:
    """The data set `choice`: ``auto``, ``cifar10``, ``fashion-mnist`` or ``digits``.

    ``cifar10:FOLDER`` and ``fashion-mnist:FOLDER`` name the place; otherwise `folders`, ``data/``
    here and the system's usual folders are searched. Images are resized to `size` pixels (0: left
    as they are).

    Raises:
        DataError: unknown choice, nothing found there, or a file that is not what it should be.
    """
    name, _, place = choice.partition(":")
    loaders: dict[str, Callable[[Sequence[Path]], Images | None]] = {
        "cifar10": _cifar10,
        "fashion-mnist": _fashion_mnist,
        "digits": _digits,
    }
    searched = [Path(place).expanduser()] if place else [*folders, Path("data"), Path()]
    if name == "auto":
        found = next(filter(None, (loader(searched) for loader in loaders.values())), None)
    elif name in loaders:
        found = loaders[name](searched if place else [*searched, *FASHION_FOLDERS])
    else:
        raise DataError(f"data {choice!r}: expected auto, {', '.join(loaders)} (or NAME:FOLDER)")
    if found is None:
        where = ", ".join(str(path.absolute()) for path in searched)
        raise DataError(f"data {choice!r}: nothing found; looked in {where}")
    return _resize(found, size) if size else found


def _cifar10(folders: Sequence[Path]) -> Images | None:
    for folder in folders:
        for path in (folder, *(folder / name for name in CIFAR_NAMES)):
            if cifar.is_folder(path):
                try:
                    return _images("CIFAR-10", str(path), *cifar.read(path))
                except (OSError, ValueError, KeyError) as error:
                    raise DataError(f"{path}: not CIFAR-10 as expected: {error}") from error
    return None


def _fashion_mnist(folders: Sequence[Path]) -> Images | None:
    for path in (*folders, *(folder / "fashion-mnist" for folder in folders), *FASHION_FOLDERS):
        if idx.is_folder(path):
            try:
                return _images("Fashion-MNIST", str(path), *idx.read_folder(path))
            except (OSError, ValueError, EOFError) as error:
                raise DataError(f"{path}: not Fashion-MNIST as expected: {error}") from error
    return None


def _digits(_: Sequence[Path]) -> Images | None:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError("data 'digits' needs scikit-learn: pip install 'mccl[demo]'") from error
    bunch = load_digits()
    # Writers follow one another in the file; a fixed shuffle gives both parts all of them.
    order = np.random.default_rng(0).permutation(len(bunch.target))
    pixels = (bunch.images[order] * (255 / 16)).astype(np.uint8)[:, None]
    labels = bunch.target[order]
    split = len(labels) - 360
    return _images(
        "digits", "scikit-learn", pixels[:split], labels[:split], pixels[split:], labels[split:]
    )


def _images(
    name: str,
    source: str,
    train: np.ndarray,
    train_labels: np.ndarray,
    test: np.ndarray,
    test_labels: np.ndarray,
) -> Images:
    scaled = torch.from_numpy(train.astype(np.float32))
    mean, deviation = scaled.mean(), scaled.std()
    return Images(
        name=name,
        source=source,
        train=(scaled - mean) / deviation,
        train_labels=torch.from_numpy(train_labels.astype(np.int64)),
        test=(torch.from_numpy(test.astype(np.float32)) - mean) / deviation,
        test_labels=torch.from_numpy(test_labels.astype(np.int64)),
        classes=10,
    )


def _resize(images: Images, size: int) -> Images:
    def resized(pixels: Tensor) -> Tensor:
        if pixels.shape[-1] == size:
            return pixels
        return functional.interpolate(
            pixels, size=(size, size), mode="bilinear", antialias=pixels.shape[-1] > size
        )

    return Images(
        images.name,
        images.source,
        resized(images.train),
        images.train_labels,
        resized(images.test),
        images.test_labels,
        images.classes,
    )
