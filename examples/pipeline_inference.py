"""Decode a small language model that is spread over ranks as a pipeline.

On this machine:     mccl run -n 2 examples/pipeline_inference.py
On several machines: mccl run --hosts a,b,c examples/pipeline_inference.py

Every rank holds some of the layers; per token, one activation crosses each boundary, and the new
token goes back to the first rank. Several sequences are in flight as microbatches, so that all
ranks have work. The tokens are compared with those of the whole model on one rank, and the rate
with what the model of the network predicts.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional

from mccl.model import Network
from mccl.model.inference import pipeline

VOCABULARY, WIDTH, HEADS, CONTEXT = 256, 128, 4, 32


class Layer(nn.Module):
    """Causal attention and MLP: ``(batch, CONTEXT, WIDTH)`` to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, WIDTH))
        result: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return result


def make_model(layers: int) -> nn.Sequential:
    """The whole model, the same on every rank."""
    torch.manual_seed(0)
    body = [Layer() for _ in range(layers)]
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *body, nn.Linear(WIDTH, VOCABULARY))


def split(model: nn.Sequential, rank: int, world: int) -> nn.Sequential:
    """This rank's share of the modules, in order."""
    bounds = [round(i * len(model) / world) for i in range(world + 1)]
    return nn.Sequential(*list(model)[bounds[rank] : bounds[rank + 1]])


def append(window: Tensor, logits: Tensor) -> Tensor:
    """The windows moved on by their most likely next tokens."""
    return torch.cat([window[:, 1:], logits[:, -1].argmax(-1, keepdim=True)], dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="mccl")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=12)
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    model = make_model(options.layers).eval()
    prompts = torch.randint(0, VOCABULARY, (options.sequences, CONTEXT))
    stage = PipelineStage(split(model, rank, world), rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=options.sequences)

    def decode(count: int) -> tuple[Tensor, float]:
        window = prompts.clone()
        start = time.perf_counter()
        for _ in range(count):
            logits = schedule.step(window) if rank == 0 else schedule.step()
            if rank == world - 1:
                window = append(window, logits)
            if world > 1:
                dist.broadcast(window, src=world - 1)
        return window, time.perf_counter() - start

    with torch.no_grad():
        decode(2)
        window, seconds = decode(options.tokens)
        if rank == 0:
            alone, expected = time.perf_counter(), prompts.clone()
            for _ in range(options.tokens):
                expected = append(expected, model(expected))
            alone = time.perf_counter() - alone
            report(options, world, seconds, alone, torch.equal(window, expected))
    dist.barrier()
    dist.destroy_process_group()


def report(
    options: argparse.Namespace, world: int, seconds: float, alone: float, same: bool
) -> None:
    """Print rates; end with an error where the tokens differ."""
    produced = options.sequences * options.tokens
    print(f"{world} ranks: {produced / seconds:.0f} tokens/s, one rank: {produced / alone:.0f}")
    found = pipeline(Network(world), world, hidden=WIDTH, compute=alone / produced)
    print(f"on the paper's network a token would spend {found.communication * 1e3:.2f} ms in hops")
    print("tokens equal those of one rank" if same else "tokens DIFFER from those of one rank")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
