"""Train a small ResNet with DistributedDataParallel.

On this machine:     mccl run -n 2 examples/train.py
On several machines: mccl run --hosts a,b,c examples/train.py

Nothing here knows mccl but the name of the backend; with --backend gloo or nccl the script is the
same. The data set is one that is at hand (see mccl.data); put your own in its place.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from mccl.data import load_images
from mccl.models import GroupNormResNet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="mccl")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="on each rank")
    options = parser.parse_args()

    dist.init_process_group(options.backend)
    device = torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    images = load_images(options.data, size=16)
    data = TensorDataset(images.train, images.train_labels)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, batch_size=options.batch, sampler=sampler)

    model = GroupNormResNet(width=16, blocks=(1, 1, 1), channels=images.train.shape[1]).to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-3)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for pixels, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(ddp(pixels.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            total += loss.detach().cpu()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            mean = float(total) / len(loader) / dist.get_world_size()
            print(f"epoch {epoch + 1}: mean loss {mean:.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
