"""One rank's part of the demo: what a user's own training script looks like, and nothing more.

Run by the elastic launcher: ``python -m mccl.demo.train SETTINGS.json``. The one line that has to
do with mccl is ``init_process_group("mccl")``.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from mccl.data import Images, load_images
from mccl.demo.settings import Outcome, Settings
from mccl.demo.show import Progress
from mccl.demo.watch import Watch, alone
from mccl.models import GroupNormResNet
from mccl.process_group import ProcessGroupMCCL

WARM_UP = 5
"""Steps that are trained but not timed: connections are made and DDP re-orders its buckets."""


def batches(
    images: Images, ranks: int, rank: int, batch: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """This rank's share of the global batches, for ever; one epoch's order is the same for any
    number of ranks, so the global batches are as well."""
    data = TensorDataset(images.train, images.train_labels)
    sampler: DistributedSampler[Any] = DistributedSampler(
        data, num_replicas=ranks, rank=rank, shuffle=True, seed=seed, drop_last=True
    )
    loader = DataLoader(data, batch_size=batch // ranks, sampler=sampler, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor, device: torch.device) -> float:
    """Share of the images that this rank holds for testing and names rightly, over all ranks."""
    model.eval()
    ranks, rank = dist.get_world_size(), dist.get_rank()
    right = torch.zeros(2, dtype=torch.float64)
    mine = DataLoader(TensorDataset(images[rank::ranks], labels[rank::ranks]), batch_size=256)
    for pixels, answers in mine:
        guesses = model(pixels.to(device)).argmax(dim=1).cpu()
        right += torch.tensor([int((guesses == answers).sum()), len(answers)])
    dist.all_reduce(right)
    model.train()
    return float(right[0] / right[1])


def digest(model: nn.Module) -> str:
    """SHA-256 of all weights, bit for bit."""
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def sent_bytes() -> int | None:
    """Bytes that mccl's engine has sent for the default group; None for another backend."""
    group = dist.group.WORLD
    return group.stats().bytes_sent if isinstance(group, ProcessGroupMCCL) else None


def train(settings: Settings, progress: Progress) -> Outcome:
    """Train, test and compare the ranks; every rank returns the same outcome but for its timing."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device(settings.device)
    images = load_images(settings.data, size=settings.size)
    torch.manual_seed(settings.seed)
    model: nn.Module = GroupNormResNet(
        width=settings.width,
        blocks=settings.blocks,
        channels=images.train.shape[1],
        classes=images.classes,
    ).to(device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=settings.bucket_mb)
    watch = Watch(ranks)
    ddp.register_comm_hook(None, watch.hook)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=settings.rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=settings.rate, total_steps=settings.steps
    )
    loader = batches(images, ranks, rank, settings.batch, settings.seed)
    losses: list[float] = []
    sent = sent_bytes()
    begin = timed_from = time.perf_counter()
    progress.begin(str(images), sum(p.numel() for p in model.parameters()))
    for step in range(settings.steps):
        if step == WARM_UP:
            watch.restart()
            sent = sent_bytes()
            timed_from = time.perf_counter()
        pixels, labels = next(loader)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(pixels.to(device)), labels.to(device))
        torch.autograd.backward(loss)
        exposed = watch.after_backward()
        optimizer.step()
        schedule.step()
        # Every rank has the mean loss of its own share; their mean is that of the global batch.
        shown = loss.detach().clone()
        dist.all_reduce(shown)
        losses.append(float(shown) / ranks)
        progress.step(step + 1, losses[-1], exposed)
    ended = time.perf_counter()
    sent = None if sent is None else (sent_bytes() or 0) - sent
    parameters = sum(p.numel() for p in model.parameters())
    traffic = watch.traffic(sent_bytes=sent, alone=alone(parameters, device))
    digests: list[str] = [""] * ranks
    dist.all_gather_object(digests, digest(model))
    return Outcome(
        ranks=ranks,
        data=str(images),
        parameters=parameters,
        buckets=watch.buckets,
        steps=settings.steps,
        batch=settings.batch,
        seconds=ended - begin,
        losses=losses,
        accuracy=accuracy(model, images.test, images.test_labels, device),
        digests=digests,
        device=settings.device,
        backend=settings.backend,
        step_seconds=(ended - timed_from) / max(1, settings.steps - WARM_UP),
        traffic=traffic,
    )


def main() -> None:
    """Entry point of one rank."""
    settings = Settings.read(Path(sys.argv[1]))
    torch.set_num_threads(settings.threads)
    dist.init_process_group(settings.backend)
    with Progress(settings, dist.get_world_size(), silent=dist.get_rank() != 0) as progress:
        outcome = train(settings, progress)
    if dist.get_rank() == 0:
        outcome.write(Path(settings.outcome))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
