"""One rank's program for the Lightning tests: ``lightning_job.py FOLDER JOB [option=value ...]``.

Writes what it saw to ``FOLDER/JOB.RANK.pt``. The same file runs alone, under torchrun and under
Lightning's own launcher.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from mccl.integrations.lightning import register

SAMPLES = 32
GLOBAL_BATCH = 8
INDEX = 0
"""The column of a batch that holds the samples' numbers."""


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, 6, generator=generator)
    return TensorDataset(torch.arange(SAMPLES), x, torch.sin(x.sum(1, keepdim=True)))


def loader(ranks: int) -> DataLoader[Any]:
    return DataLoader(data(), batch_size=GLOBAL_BATCH // ranks)


def in_trainers_order() -> DataLoader[Any]:
    """For one process: the order that Trainer's own sampler gives all ranks together.

    On several ranks Trainer shuffles the training data with a seed of 0 whatever the loader says.
    """
    sampler = DistributedSampler(data(), num_replicas=1, rank=0, shuffle=True, seed=0)
    return DataLoader(data(), batch_size=GLOBAL_BATCH, sampler=sampler)


def network() -> torch.nn.Sequential:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()
        self.seen: list[int] = []
        self.integer_mean = torch.zeros(())

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        self.seen += batch[INDEX].tolist()
        loss = mse_loss(self.net(batch[1]), batch[2])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        self.log("val", mse_loss(self.net(batch[1]), batch[2]), sync_dist=True)

    def on_train_end(self) -> None:
        # An integer mean, which Lightning asks of any backend but gloo.
        ranked = torch.tensor(10 + 2 * self.global_rank)
        self.integer_mean = self.trainer.strategy.reduce(ranked, reduce_op="mean")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def trainer(folder: Path, job: str, ranks: int, epochs: int) -> dict[str, Any]:
    model = Model()
    last = folder / "checkpoints" / "last.ckpt"
    run = lightning.Trainer(
        strategy="mccl" if ranks > 1 else "auto",
        accelerator="cpu",
        devices=ranks,
        max_epochs=epochs,
        logger=CSVLogger(folder / "logs", name=job),
        callbacks=[ModelCheckpoint(last.parent, save_last=True)],
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
    )
    batches = loader(ranks) if ranks > 1 else in_trainers_order()
    run.fit(model, batches, loader(ranks), ckpt_path=last if job == "resume" else None)
    return {
        "seen": model.seen,
        "steps": run.global_step,
        "epochs": run.current_epoch,
        "metrics": {name: float(value) for name, value in run.callback_metrics.items()},
        "integer_mean": int(model.integer_mean),
        "weights": model.net.state_dict(),
        "strategy": type(run.strategy).__name__,
    }


def fabric(ranks: int, epochs: int) -> dict[str, Any]:
    strategy = register("mccl_test", bucket_cap_mb=1) if ranks > 1 else "auto"
    run = lightning.Fabric(strategy=strategy, accelerator="cpu", devices=ranks)
    run.launch()
    net = network()
    model, optimizer = run.setup(net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
    batches = run.setup_dataloaders(loader(ranks))
    seen: list[int] = []
    for _ in range(epochs):
        for batch in batches:
            seen += batch[INDEX].tolist()
            optimizer.zero_grad()
            run.backward(mse_loss(model(batch[1]), batch[2]))
            optimizer.step()
    return {"seen": seen, "weights": net.state_dict(), "strategy": type(run.strategy).__name__}


def main() -> None:
    folder, job = Path(sys.argv[1]), sys.argv[2]
    ranks, epochs = int(sys.argv[3]), int(sys.argv[4])
    result = fabric(ranks, epochs) if job == "fabric" else trainer(folder, job, ranks, epochs)
    result["nccl"] = sorted(name for name in os.environ if name.startswith("NCCL_"))
    result["backend"] = dist.get_backend() if dist.is_initialized() else None
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.save(result, folder / f"{job}.{rank}.pt")


if __name__ == "__main__":
    main()
