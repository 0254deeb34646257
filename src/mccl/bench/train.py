"""``mccl bench train``: the Vision Transformer under DDP (paper §5.2, figure 4).

Each world size is timed three ways in the same processes, in turns: compute alone (no gradient
exchange), DDP over the backend, and the strongest alternative in stock PyTorch, Gloo staged by
hand: drain the device after backward, copy each bucket to the CPU, reduce it, copy it back.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mccl.bench.launch import Launcher, RankContext
from mccl.bench.record import Case, Label, Record, default_path
from mccl.bench.single import worlds_of
from mccl.bench.sweep import settle
from mccl.bench.table import render
from mccl.bench.units import format_seconds
from mccl.models import VisionTransformer

COMPUTE, STAGED = "compute", "gloo-staged"
_MB = 1e6
_TURNS = 3


class StagedReducer:
    """Averages gradients through the CPU after backward, bucket by bucket, with Gloo.

    Args:
        parameters: those whose ``grad`` is averaged in place.
        group: a Gloo group.
        bucket_bytes: a bucket is closed once it holds this much.
    """

    def __init__(
        self, parameters: list[nn.Parameter], group: dist.ProcessGroup, bucket_bytes: int
    ) -> None:
        self._group = group
        self._buckets: list[list[nn.Parameter]] = [[]]
        filled = 0
        for parameter in reversed(parameters):  # the order in which backward produces them
            if filled >= bucket_bytes:
                self._buckets.append([])
                filled = 0
            self._buckets[-1].append(parameter)
            filled += parameter.nbytes
        pin = parameters[0].device.type == "cuda"
        self._staging = [
            torch.empty(sum(p.numel() for p in bucket), pin_memory=pin) for bucket in self._buckets
        ]

    def reduce(self) -> None:
        """Average every gradient over the group; blocks."""
        for bucket, staging in zip(self._buckets, self._staging, strict=True):
            gradients = [p.grad for p in bucket if p.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            settle(flat.device)
            staging.copy_(flat)
            dist.all_reduce(staging, group=self._group)
            staging.div_(self._group.size())
            flat.copy_(staging)
            sizes = [gradient.numel() for gradient in gradients]
            for gradient, part in zip(gradients, torch.split(flat, sizes), strict=True):
                gradient.copy_(part.view_as(gradient))


def build_model(options: dict[str, Any]) -> VisionTransformer:
    """The paper's model, or a smaller one of the same make where sizes are given."""
    sizes = (options["depth"], options["width"], options["heads"])
    if sizes == (None, None, None):
        return VisionTransformer.paper()
    depth, width, heads = (
        given or usual for given, usual in zip(sizes, (16, 768, 12), strict=True)
    )
    return VisionTransformer(dim=width, depth=depth, heads=heads, hidden=4 * width)


def rank_device(kind: str, rank: int) -> torch.device:
    """The device of a rank; ranks share GPUs in turn where there are fewer GPUs than ranks."""
    if kind != "cuda":
        return torch.device(kind)
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def worker(context: RankContext, options: dict[str, Any]) -> dict[str, Any]:
    """Step times in seconds of each way on this rank, and DDP's buckets."""
    torch.set_float32_matmul_precision(options["precision"])
    device = rank_device(options["device"], context.rank)
    torch.manual_seed(0)
    model = build_model(options).to(device)
    images = torch.randn(options["batch"], 3, 32, 32, device=device)
    labels = torch.randint(0, 10, (options["batch"],), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step = _Step(model, images, labels, optimizer, device)
    result: dict[str, Any] = {"parameters": sum(p.numel() for p in model.parameters())}
    samples: dict[str, list[float]] = {COMPUTE: []}
    ways: dict[str, tuple[bool, Callable[[], None]]] = {COMPUTE: (False, _nothing)}
    if context.world > 1:
        step.ddp = DistributedDataParallel(
            model,
            process_group=context.group(options["backend"]),
            bucket_cap_mb=options["bucket_mb"],
            gradient_as_bucket_view=True,
        )
        ways[options["backend"]] = (True, _nothing)
        if options["staged"]:
            bucket_bytes = int(options["bucket_mb"] * 2**20)
            staged = StagedReducer(list(model.parameters()), context.group("gloo"), bucket_bytes)
            ways[STAGED] = (False, staged.reduce)
    for turn in range(_TURNS):
        for name, (step.exchange, step.after_backward) in ways.items():
            warmup = options["warmup"] if turn == 0 else 1
            samples.setdefault(name, []).extend(_times(context, step, warmup, options["steps"]))
    if step.ddp is not None:
        result["buckets"] = bucket_bytes_of(step.ddp)
    return result | {"samples": samples}


def bucket_bytes_of(ddp: DistributedDataParallel) -> list[int]:
    """Bytes of DDP's buckets as rebuilt after the first step."""
    logged: dict[str, Any] = ddp._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    text = str(logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or "")
    return [int(part) for part in text.split(",") if part.strip()]


def _nothing() -> None:
    """No exchange of gradients."""


class _Step:
    """One training step: whether DDP exchanges gradients, and what happens after backward."""

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        labels: Tensor,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
    ) -> None:
        self._model = model
        self.ddp: DistributedDataParallel | None = None
        self.exchange = False
        self.after_backward: Callable[[], None] = _nothing
        self.device = device
        self._images, self._labels, self._optimizer = images, labels, optimizer

    def __call__(self) -> None:
        self._optimizer.zero_grad(set_to_none=False)
        apart = (
            contextlib.nullcontext() if self.ddp is None or self.exchange else self.ddp.no_sync()
        )
        with apart:
            logits = (self.ddp or self._model)(self._images)
            loss = nn.functional.cross_entropy(logits, self._labels)
            torch.autograd.backward(loss)
        self.after_backward()
        self._optimizer.step()


def _times(context: RankContext, step: _Step, warmup: int, steps: int) -> list[float]:
    for _ in range(warmup):
        step()
    settle(step.device)
    context.gather("ready")
    samples = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        settle(step.device)
        samples.append(time.perf_counter() - start)
    return samples


def run(args: argparse.Namespace, launcher: Launcher) -> int:
    """Measure every world size, save, print; 0."""
    options = {
        name: getattr(args, name)
        for name in (
            "backend",
            "device",
            "batch",
            "steps",
            "warmup",
            "depth",
            "width",
            "heads",
            "bucket_mb",
            "precision",
        )
    } | {"staged": not args.no_staged}
    record = Record("train", launcher.facts | {"title": launcher.title} | options)
    for world in worlds_of(args, launcher):
        ranks = launcher.run(worker, options, world, args.timeout)
        if ranks is None:
            continue
        record.settings["parameters"] = ranks[0]["parameters"]
        record.settings["buckets"] = ranks[0].get("buckets", record.settings.get("buckets", []))
        for series in ranks[0]["samples"]:
            steps = zip(*(rank["samples"][series] for rank in ranks), strict=True)
            labels: dict[str, Label] = {"ranks": world, "batch": args.batch}
            record.cases.append(Case(series, dict(labels), [[max(step) for step in steps]]))
    if not record.cases:
        return 0
    path = record.save(default_path(record, Path(args.out)))
    print_record(record)
    print(f"\nraw: {path}")
    return 0


def throughput(case: Case) -> float:
    """Samples a second of all ranks together."""
    batch, ranks = case.labels["batch"], case.labels["ranks"]
    assert isinstance(batch, int)
    assert isinstance(ranks, int)
    return batch * ranks / case.median


def efficiency(record: Record, case: Case) -> float:
    """Throughput over that of ``ranks`` single ranks; nan without a run of one rank."""
    single = record.one(COMPUTE, ranks=1)
    ranks = case.labels["ranks"]
    assert isinstance(ranks, int)
    return float("nan") if single is None else throughput(case) / (ranks * throughput(single))


def print_record(record: Record) -> None:
    """The table of a train record."""
    settings = record.settings
    print(f"\n{record.machine.sentence()}\n{settings['title']}; {record.command}")
    sizes = ", ".join(f"{size / _MB:.1f}" for size in settings["buckets"])
    print(
        f"{settings['parameters'] / 1e6:.1f} M parameters, "
        f"{settings['parameters'] * 4 / _MB:.0f} MB "
        f"of gradients; {len(settings['buckets'])} buckets of {sizes} MB\n"
    )
    rows = []
    for case in record.cases:
        compute = record.one(COMPUTE, ranks=case.labels["ranks"])
        exposed = case.median - compute.median if compute else float("nan")
        low, high = case.spread
        share = efficiency(record, case)
        rows.append(
            [
                f"{case.series}, {case.labels['ranks']} ranks",
                format_seconds(case.median),
                f"{format_seconds(low)}..{format_seconds(high)}",
                format_seconds(max(0.0, exposed)),
                f"{throughput(case):.1f}",
                "-" if math.isnan(share) else f"{100 * share:.1f}%",
            ]
        )
    header = ["", "step", "spread", "exposed comm.", "samples/s", "of linear"]
    print(render(header, rows))
