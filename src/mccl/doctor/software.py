"""Versions, the native library, the settings, and a proof of a few plans."""

from __future__ import annotations

import importlib.metadata
import logging
import platform
import re
import sys
from collections.abc import Iterator

from mccl.config import Config, ConfigError
from mccl.doctor.finding import Finding, Status

OLDEST_TORCH = (2, 11)
SECTION = "software"


def examine() -> Iterator[Finding]:
    """Python, torch, numpy, mccl, the native library and the registration of the backend."""
    yield Finding(SECTION, "Python", Status.OK, f"{platform.python_version()} ({sys.executable})")
    yield _torch()
    for name in ("numpy", "mccl"):
        yield _package(name)
    yield _library()
    yield _registration()


def _torch() -> Finding:
    import torch

    version = str(torch.__version__)
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_TORCH:
        need = ".".join(map(str, OLDEST_TORCH))
        return Finding(SECTION, "torch", Status.FAIL, version, f"pip install 'torch>={need}'")
    return Finding(SECTION, "torch", Status.OK, version)


def _package(name: str) -> Finding:
    try:
        return Finding(SECTION, name, Status.OK, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        from mccl import __version__

        if name != "mccl":
            return Finding(SECTION, name, Status.FAIL, "not installed", f"pip install {name}")
        return Finding(
            SECTION,
            name,
            Status.WARN,
            f"{__version__}, not installed (run from a checkout)",
            "Scripts need `import mccl` themselves. To change that: pip install .",
        )


def _library() -> Finding:
    from mccl.engine import library_path, native_library

    try:
        library = native_library()
    except (ImportError, OSError) as error:
        return Finding(
            SECTION, "native library", Status.FAIL, str(error), "make native, or reinstall mccl"
        )
    isa = library.mccl_kernel_isa(None).decode()
    build = library.mccl_build_info().decode()
    value = f"{library_path()} ({build}; kernels: {isa})"
    if isa == "generic":
        advice = "This processor offers no vector instructions that the kernels know; sums are slow"
        return Finding(SECTION, "native library", Status.WARN, value, advice)
    return Finding(SECTION, "native library", Status.OK, value)


def _registration() -> Finding:
    import torch.distributed as dist

    if not dist.is_available():
        return Finding(
            SECTION,
            "backend",
            Status.FAIL,
            "this torch has no torch.distributed",
            "reinstall torch",
        )
    if "mccl" not in dist.Backend.backend_list:
        return Finding(
            SECTION, "backend", Status.FAIL, "mccl is not registered", "see the warnings above"
        )
    return Finding(SECTION, "backend", Status.OK, '"mccl" is known to torch.distributed')


class _Collect(logging.Handler):
    """Keeps what ``mccl.config`` warns about."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def settings() -> Iterator[Finding]:
    """Settings that do not have their default, where they came from, and names without effect."""
    from mccl import config as config_module

    collected = _Collect()
    logger = logging.getLogger("mccl.config")
    logger.addHandler(collected)
    logger.propagate, propagated = False, logger.propagate
    config_module.forget_reported()
    try:
        config = Config.from_env()
    except ConfigError as error:
        yield Finding("settings", "environment", Status.FAIL, str(error), "correct or unset it")
        return
    finally:
        logger.removeHandler(collected)
        logger.propagate = propagated
    rows = list(config.describe())
    for row in rows:
        if row.source != "default":
            yield Finding("settings", row.name, Status.OK, f"{row.value}, from {row.source}")
    at_default = sum(row.source == "default" for row in rows)
    yield Finding("settings", "others", Status.OK, f"{at_default} at their defaults")
    for text in collected.texts:
        name, _, rest = text.partition(" ")
        yield Finding("settings", name, Status.WARN, rest, f"unset {name}")


def plans() -> Iterator[Finding]:
    """A few plans of each kind, proven; the test suite proves all of them."""
    from mccl.plans.check import check
    from mccl.plans.choose import build
    from mccl.plans.plan import Collective
    from mccl.plans.request import Request

    proven = 0
    kinds = [
        (Collective.ALL_REDUCE, "ring"),
        (Collective.ALL_REDUCE, "recursive_doubling"),
        (Collective.ALL_GATHER, "ring"),
        (Collective.REDUCE_SCATTER, "ring"),
    ]
    for collective, algorithm in kinds:
        for world in (2, 3, 5, 8):
            request = Request(sizes=7)
            check(
                [build(collective, algorithm, world, rank, request) for rank in range(world)],
                request,
            )
            proven += 1
    yield Finding("plans", "proof", Status.OK, f"{proven} sets of plans proven correct")
