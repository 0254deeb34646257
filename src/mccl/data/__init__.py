"""Data sets for examples, benchmarks and the demo; none of them is downloaded."""

from __future__ import annotations

from mccl.data.images import DataError, Images, load_images

__all__ = ["DataError", "Images", "load_images"]
