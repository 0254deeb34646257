"""Lightning over MCCL: the strategy ``"mccl"`` for ``Trainer`` and for ``Fabric``.

Importing this module registers the name in both registries of ``lightning``::

    import mccl.integrations.lightning

    trainer = lightning.Trainer(strategy="mccl", accelerator="mps", devices=1, num_nodes=24)

Lightning refuses its own DDP on MPS, and any strategy *object* made for several processes. A name
without "ddp" in it passes, so on a Mac give the name; ``register`` makes a name with options of
your own. Lightning has no entry point for strategies: this module must be imported.
"""

from __future__ import annotations

import importlib.metadata
import logging
from typing import Any

import torch

from mccl import process_group  # noqa: F401  (a package that cannot load fails here, not mid-job)
from mccl.config import drop_variables
from mccl.errors import UsageError

OLDEST = (2, 4)
"""The oldest Lightning this is tested with (2.4.0); 2.6.6 is the newest, 2.5 was not tried."""

BACKEND = "mccl"

_log = logging.getLogger("mccl.lightning")


def check_version(found: str | None) -> None:
    """Raises ImportError where Lightning is missing (`found` is None) or older than ``OLDEST``."""
    oldest = ".".join(map(str, OLDEST))
    advice = f"pip install 'mccl[lightning]' (or 'lightning>={oldest}')"
    if found is None:
        raise ImportError(
            f"mccl.integrations.lightning needs the package 'lightning', which is not installed "
            f"('pytorch_lightning' is another package): {advice}",
            name="lightning",
        )
    if tuple(int(part) for part in found.split(".")[:2]) < OLDEST:
        raise ImportError(
            f"mccl.integrations.lightning needs lightning >= {oldest}, found {found}: {advice}",
            name="lightning",
        )


def _installed() -> str | None:
    try:
        return importlib.metadata.version("lightning")
    except importlib.metadata.PackageNotFoundError:
        return None


check_version(_installed())

from lightning.fabric.strategies import STRATEGY_REGISTRY, DDPStrategy as FabricDDP  # noqa: E402,I001
from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry  # noqa: E402

# Fabric's one method to override is private: where it is gone, DDP would be told a device index
# that it refuses on MPS. Better said here.
_OVERRIDDEN = (
    (DDPStrategy, "determine_ddp_device_ids"),
    (FabricDDP, "_determine_ddp_device_ids"),
)
for _base, _method in _OVERRIDDEN:
    if not hasattr(_base, _method):
        raise ImportError(
            f"lightning {_installed()} has no {_base.__module__}.DDPStrategy.{_method}; mccl was "
            "tested with lightning 2.4.0 and 2.6.6: install one of those",
            name="lightning",
        )


def _options(options: dict[str, Any]) -> dict[str, Any]:
    backend = options.setdefault("process_group_backend", BACKEND)
    if backend != BACKEND:
        raise UsageError(
            f"process_group_backend is {backend!r}, but this strategy runs over {BACKEND!r} alone; "
            "leave it out, or use lightning's DDPStrategy"
        )
    return options


def _own_device(devices: list[torch.device] | None, local_rank: int) -> torch.device:
    """The device of this process: on CPU and on a Mac there is one, whatever the local rank.

    Schedulers that put several "nodes" on one machine count local ranks past what
    ``devices=1`` names.
    """
    if not devices:
        raise UsageError("the strategy has no devices yet: pass it to a Trainer or a Fabric")
    if devices[0].type in ("cpu", "mps"):
        return devices[0]
    if local_rank >= len(devices):
        raise UsageError(
            f"local rank {local_rank} has no device: devices={len(devices)} on this machine; the "
            "launcher must start as many processes a node as devices= says"
        )
    return devices[local_rank]


def _ddp_device_ids(device: torch.device) -> list[int] | None:
    """What DDP takes as ``device_ids``: it refuses an index for anything but CUDA."""
    return [device.index] if device.type == "cuda" else None


def _drop_nccl() -> None:
    """Launchers set ``NCCL_*`` for the backend they expect; here they would only mislead."""
    dropped = drop_variables("NCCL_")
    if dropped:
        _log.debug("dropped %s: the backend is mccl", ", ".join(dropped))


class _OverMCCL:
    """What both strategies do, before lightning's own DDP in the method order."""

    parallel_devices: list[torch.device] | None
    local_rank: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**_options(options))

    @property
    def root_device(self) -> torch.device:
        """The device this process trains on, with an index unless it is the CPU."""
        return _own_device(self.parallel_devices, self.local_rank)

    def setup_environment(self) -> None:
        """Makes the process group, in an environment without ``NCCL_*``."""
        _drop_nccl()
        super().setup_environment()  # type: ignore[misc]


class MCCLStrategy(_OverMCCL, DDPStrategy):
    """DistributedDataParallel over mccl, for ``lightning.Trainer``.

    `options` are those of lightning's ``DDPStrategy``, and through it of
    ``DistributedDataParallel`` (``bucket_cap_mb``, ``find_unused_parameters``, ...). Raises
    ``UsageError`` for a ``process_group_backend`` other than ``"mccl"``.
    """

    def determine_ddp_device_ids(self) -> list[int] | None:
        """None on CPU and MPS."""
        return _ddp_device_ids(self.root_device)


class MCCLFabricStrategy(_OverMCCL, FabricDDP):
    """DistributedDataParallel over mccl, for ``lightning.Fabric``; options as ``MCCLStrategy``."""

    def _determine_ddp_device_ids(self) -> list[int] | None:
        return _ddp_device_ids(self.root_device)


def _enter(registry: Any, name: str, strategy: type, options: dict[str, Any]) -> None:
    registry.register(
        name, strategy, description="DDP over mccl", override=name in registry, **options
    )


def register(name: str, **options: Any) -> str:
    """Register a strategy name of your own, for Trainer and Fabric, and return it.

    For options on a Mac, where lightning takes no strategy object:
    ``Trainer(strategy=register("mccl_small_buckets", bucket_cap_mb=8), ...)``.

    Raises:
        UsageError: a name that lightning would refuse on MPS, or the name of another strategy.
    """
    if name != name.lower() or "ddp" in name or "deepspeed" in name:
        raise UsageError(
            f"strategy name {name!r}: lightning wants lower case, and refuses names with 'ddp' or "
            "'deepspeed' on MPS; take one such as 'mccl_small_buckets'"
        )
    _options(dict(options))
    entries = ((StrategyRegistry, MCCLStrategy), (STRATEGY_REGISTRY, MCCLFabricStrategy))
    for registry, strategy in entries:
        if name in registry and registry[name]["strategy"] is not strategy:
            raise UsageError(f"strategy name {name!r} is lightning's own; take another")
        _enter(registry, name, strategy, options)
    return name


register("mccl")
