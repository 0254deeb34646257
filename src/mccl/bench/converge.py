"""``mccl bench converge``: does training converge alike at every world size (paper §5.3, figure 5)?

A GroupNorm ResNet takes the same number of AdamW steps on K ranks, each with the same batch, the
learning rate scaled as ``4e-4 * K**0.45``. More ranks average over more images a step, so at the
same step they should be further; and none may diverge.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from mccl.bench.launch import Launcher, RankContext
from mccl.bench.record import Case, Record, default_path
from mccl.bench.single import worlds_of
from mccl.bench.table import render
from mccl.bench.train import rank_device
from mccl.data import Images, load_images
from mccl.models import GroupNormResNet

BASE_RATE, RATE_POWER = 4e-4, 0.45
CURVES = ("validation_loss", "validation_accuracy", "training_loss")
_PIXELS = {"full": 32, "demo": 16}


def build_model(size: str, classes: int) -> GroupNormResNet:
    """The paper's ResNet (31.6 M parameters), or one of 0.08 M that suits two CPU cores."""
    if size == "full":
        return GroupNormResNet.paper()
    return GroupNormResNet(width=16, blocks=(1, 1, 1), classes=classes)


def learning_rate(world: int) -> float:
    """AdamW's rate for ``world`` ranks (paper §5.3)."""
    return BASE_RATE * math.pow(world, RATE_POWER)


def batch_indices(step: int, rank: int, world: int, batch: int, total: int, seed: int) -> Tensor:
    """Which of ``total`` images a rank takes at a step: its part of an endless shuffled deck.

    Every epoch is shuffled anew; the ranks' parts of a step are disjoint.
    """
    start = (step * world + rank) * batch
    indices = []
    for position in range(start, start + batch):
        epoch, place = divmod(position, total)
        indices.append(int(_deck(epoch, total, seed)[place]))
    return torch.tensor(indices)


_decks: dict[tuple[int, int, int], Tensor] = {}


def _deck(epoch: int, total: int, seed: int) -> Tensor:
    key = (epoch, total, seed)
    if key not in _decks:
        generator = torch.Generator().manual_seed(seed * 100003 + epoch)
        _decks[key] = torch.randperm(total, generator=generator)
    return _decks[key]


def worker(context: RankContext, options: dict[str, Any]) -> dict[str, Any]:
    """Trains on this rank; curves (alike on all ranks), seconds, and a digest of the weights."""
    device = rank_device(options["device"], context.rank)
    images = load_images(options["data"], size=_PIXELS[options["size"]])
    torch.manual_seed(options["seed"])
    model: nn.Module = build_model(options["size"], images.classes).to(device)
    plain = model
    if context.world > 1:
        group = context.group(options["backend"])
        model = DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate(context.world))
    curves: dict[str, list[float]] = {"step": [], **{name: [] for name in CURVES}}
    start = time.perf_counter()
    loss_sum = 0.0
    for step in range(options["steps"]):
        chosen = batch_indices(
            step, context.rank, context.world, options["batch"], len(images.train), options["seed"]
        )
        loss = nn.functional.cross_entropy(
            model(_pixels(images.train[chosen], device)), images.train_labels[chosen].to(device)
        )
        optimizer.zero_grad(set_to_none=False)
        torch.autograd.backward(loss)
        optimizer.step()
        loss_sum += float(loss.detach())
        if (step + 1) % options["evaluate_every"] == 0 or step + 1 == options["steps"]:
            since = step + 1 - (curves["step"][-1] if curves["step"] else 0)
            found = _evaluate(context, plain, images, options["validation_images"], device)
            training = sum(context.gather(loss_sum)) / context.world / since
            loss_sum = 0.0
            for name, value in zip(("step", *CURVES), (step + 1, *found, training), strict=True):
                curves[name].append(value)
    return {
        "curves": curves,
        "seconds": time.perf_counter() - start,
        "weights": _digest(plain),
        "data": str(images),
        "parameters": sum(p.numel() for p in plain.parameters()),
    }


def _pixels(images: Tensor, device: torch.device) -> Tensor:
    """On the device, grey images as three equal channels."""
    return images.to(device).expand(-1, 3, -1, -1)


def _evaluate(
    context: RankContext, model: nn.Module, images: Images, limit: int, device: torch.device
) -> tuple[float, float]:
    """Loss and accuracy (0..1) over the first ``limit`` test images, shared out over the ranks."""
    mine = torch.arange(context.rank, min(limit, len(images.test)), context.world)
    loss, right = 0.0, 0
    model.eval()
    with torch.no_grad():
        for part in mine.split(256):  # type: ignore[no-untyped-call]
            logits = model(_pixels(images.test[part], device))
            labels = images.test_labels[part].to(device)
            loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(1) == labels).sum())
    model.train()
    totals = [sum(column) for column in zip(*context.gather([loss, right, len(mine)]), strict=True)]
    return totals[0] / totals[2], totals[1] / totals[2]


def _digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def run(args: argparse.Namespace, launcher: Launcher) -> int:
    """Train at every world size, save, print; 1 when a run diverged or its ranks differ."""
    options = {
        "backend": args.backend,
        "device": args.device,
        "size": args.size,
        "steps": args.steps,
        "batch": args.batch,
        "evaluate_every": args.evaluate_every,
        "validation_images": args.validation_images,
        "data": args.data,
        "seed": args.seed,
    }
    record = Record("converge", launcher.facts | {"title": launcher.title} | options)
    failures = []
    for world in worlds_of(args, launcher):
        ranks = launcher.run(worker, options, world, args.timeout)
        if ranks is None:
            continue
        first = ranks[0]
        record.settings |= {"data": first["data"], "parameters": first["parameters"]}
        same = len({rank["weights"] for rank in ranks}) == 1
        record.cases += [
            Case(
                args.backend,
                {"ranks": world, "what": name, "rate": learning_rate(world)},
                [values],
                unit=name,
                facts={"seconds": first["seconds"], "same_weights": float(same)},
            )
            for name, values in first["curves"].items()
        ]
        if not same:
            failures.append(f"{world} ranks: weights differ between ranks")
        losses = first["curves"]["validation_loss"]
        if not all(map(math.isfinite, losses)) or losses[-1] > losses[0] + 0.1:
            failures.append(f"{world} ranks: validation loss went {losses[0]} -> {losses[-1]}")
    if not record.cases:
        return 0
    path = record.save(default_path(record, Path(args.out)))
    print_record(record)
    print(f"\nraw: {path}")
    for failure in failures:
        print(f"FAILED {failure}")
    return 1 if failures else 0


def print_record(record: Record) -> None:
    """The table of a converge record: the last point of each curve."""
    settings = record.settings
    print(f"\n{record.machine.sentence()}\n{settings['title']}; {record.command}")
    print(
        f"{settings['data']}; {settings['parameters'] / 1e6:.2f} M parameters, "
        f"{settings['steps']} steps of {settings['batch']} images a rank\n"
    )
    rows = []
    for world in record.labels("ranks"):
        found = {case.labels["what"]: case for case in record.find(ranks=world)}
        case = found["validation_loss"]
        rows.append(
            [
                str(world),
                str(world * settings["batch"]),
                f"{case.labels['rate']:.2e}",
                f"{found['training_loss'].samples[-1]:.4f}",
                f"{case.samples[-1]:.4f}",
                f"{100 * found['validation_accuracy'].samples[-1]:.1f}%",
                "yes" if case.facts["same_weights"] else "NO",
                f"{case.facts['seconds']:.0f} s",
            ]
        )
    header = [
        "ranks",
        "global batch",
        "rate",
        "training loss",
        "validation loss",
        "accuracy",
        "same weights on all ranks",
        "time",
    ]
    print(render(header, rows))
