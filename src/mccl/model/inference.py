"""Tokens a second when a model is spread over hosts for inference (paper §8).

One sequence, one token at a time. ``compute``: seconds a token takes on one host that holds the
whole model. Decoding is a chain: nothing of the next token can start before this one is done, so
latency adds up for one sequence; several sequences fill a pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass

from mccl.model.network import Network
from mccl.model.predict import all_reduce_seconds
from mccl.plans import Collective, choose

REDUCES_PER_LAYER = 2
"""All-reduces of a tensor-parallel transformer layer: after attention and after the MLP
(Shoeybi et al., Megatron-LM, 2019; paper §8)."""


@dataclass(frozen=True, slots=True)
class Decode:
    """``per_sequence``: tokens a second of one sequence; ``total``: of all together;
    ``communication``: seconds a token."""

    per_sequence: float
    total: float
    communication: float


def tensor_parallel(
    network: Network, world: int, layers: int, *, hidden: int, compute: float = 0.0
) -> Decode:
    """Every layer split over ``world`` hosts: two all-reduces of ``hidden`` float16 a layer."""
    nbytes = 2 * hidden
    algorithm = choose(Collective.ALL_REDUCE, hidden, 2, world)
    once = all_reduce_seconds(algorithm, network, nbytes, world=world, itemsize=2)
    return _tensor(layers, once, compute / world)


def paper_tensor_parallel(layers: int, round_trip: float, compute: float = 0.0) -> Decode:
    """The paper's lower bound: an all-reduce takes at least one round trip, whatever its size
    (§8: 32 layers and 0.59 ms give 38 ms a token, 26 tokens a second)."""
    return _tensor(layers, round_trip, compute)


def _tensor(layers: int, once: float, compute: float) -> Decode:
    communication = REDUCES_PER_LAYER * layers * once
    rate = 1 / (compute + communication)
    return Decode(rate, rate, communication)


def pipeline(
    network: Network, stages: int, *, hidden: int, compute: float, sequences: int = 1
) -> Decode:
    """Layers dealt out to ``stages`` hosts; a token crosses ``stages - 1`` boundaries, and its
    number returns to the first stage, where the next one starts.

    ``sequences`` in flight fill the pipeline: the slowest of stage and loop sets the rate.
    """
    link = network.hockney
    boundary = link.alpha + 2 * hidden * link.beta
    # Back to the first stage goes one token id.
    communication = (stages - 1) * boundary + (link.alpha if stages > 1 else 0.0)
    loop = compute + communication
    busiest = max(compute / stages, 2 * hidden * link.beta)
    total = min(sequences / loop, 1 / busiest)
    return Decode(total / sequences, total, communication)


def replicated(hosts: int, *, compute: float) -> Decode:
    """Each host serves sequences of its own with a whole copy."""
    return Decode(1 / compute, hosts / compute, 0.0)
