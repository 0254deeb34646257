"""Advice for a training script, from the model of the network."""

from __future__ import annotations

from typing import Any

from mccl.errors import UsageError
from mccl.model import Network, goodput
from mccl.model.forecast import MIB, bucket_cap_mb
from mccl.model.hockney import PAPER_RTT_S
from mccl.model.units import parse_link

FLOOR_MB = 8
"""Below this, what each bucket costs in hooks and launches outweighs what hides better."""


def suggest_bucket_cap_mb(
    model: Any, world: int, link: str | float = "10G", *, rtt: float = PAPER_RTT_S, mtu: int = 9000
) -> int:
    """A ``bucket_cap_mb`` for ``DistributedDataParallel``: the smallest with which a flat ring of
    ``world`` ranks is bound by bandwidth, as what cannot hide is the last bucket.

    ``model``: a ``torch.nn.Module``, whose gradients bound the answer, or their bytes. ``link``:
    rate of a host's link, as in ``"10G"``, or bits a second. ``rtt``: seconds of a round trip of
    two hosts. ``mtu``: bytes of a frame. Raises UsageError for values that make no sense.
    """
    if world < 1 or rtt < 0:
        raise UsageError(f"expected a world size of at least 1 and rtt >= 0, got {world}, {rtt}")
    try:
        rate = goodput(parse_link(link) if isinstance(link, str) else link, mtu)
    except ValueError as error:
        raise UsageError(f"suggest_bucket_cap_mb: {error}") from error
    whole = max(1, -(-_gradient_bytes(model) // MIB))
    network = Network(world, link=rate, hop=rtt / 2)
    return min(whole, max(FLOOR_MB, bucket_cap_mb(network, world)))


def _gradient_bytes(model: Any) -> int:
    if isinstance(model, int):
        if model <= 0:
            raise UsageError(f"expected bytes of gradients above 0, got {model}")
        return model
    sizes = [p.numel() * p.element_size() for p in model.parameters() if p.requires_grad]
    if not sizes:
        raise UsageError("the model has no parameters that require gradients: nothing to exchange")
    return int(sum(sizes))
