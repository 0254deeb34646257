"""Proof of the CUDA handoff, to be run on a machine with at least one CUDA GPU.

    PYTHONPATH=src python bench/handoff_cuda.py                # two ranks, on one GPU if need be
    PYTHONPATH=src python bench/handoff_cuda.py --cpu          # the script's own smoke test

What it shows, in one run, without network (all ranks are on this machine):

* burst: asynchronous all-reduces, their inputs written and their results read by kernels,
  with no host synchronisation in between: exact or not;
* gradients: DDP over mccl against the same backward pass summed synchronously by Gloo, bit
  for bit;
* a step's time with DDP over mccl, with compute alone, communication alone, both one after
  the other, and with Gloo staged by hand (pinned copies, buckets of the same size);
* a mixed group: one rank's model on the GPU, the other's on the CPU, training as one.

``hidden`` is the share of communication time that does not lengthen the step:
``1 - (step - compute) / communication``. Unless ``--batch`` is given the batch is chosen so
that compute takes ``--ratio`` times as long as communication.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

MIB = 1 << 20
BUCKET_MIB = 25


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Bench:
    """One rank."""

    def __init__(self, rank: int, options: argparse.Namespace) -> None:
        self.rank, self.options = rank, options
        self.world = options.world
        if options.cpu:
            self.device = torch.device("cpu")
        else:
            self.device = torch.device("cuda", rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        torch.set_num_threads(max(1, (os.cpu_count() or 2) // (2 * self.world)))
        torch.manual_seed(0)
        self.rows: dict[str, Any] = {}
        store = dist.PrefixStore("gloo", dist.distributed_c10d._get_default_store())
        self.gloo = dist.ProcessGroupGloo(store, rank, self.world, timedelta(minutes=5))
        self.net = self.model().to(self.device)
        self.batch = options.batch or 256
        self.x = torch.empty(0)

    def model(self) -> nn.Module:
        width, layers = self.options.width, self.options.layers
        stack = [m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*stack)

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def inputs(self, batch: int) -> None:
        """Every rank its own data."""
        self.batch = batch
        draw = torch.Generator(device="cpu").manual_seed(1 + self.rank)
        self.x = torch.randn(batch, self.options.width, generator=draw).to(self.device)

    def together(self, value: float) -> float:
        """The slowest rank's value, so that all ranks decide the same."""
        tensor = torch.tensor([value], dtype=torch.float64)
        self.gloo.allreduce([tensor], dist.ReduceOp.MAX).wait()
        return float(tensor)

    def time(self, work: Callable[[], None], repeat: int | None = None) -> float:
        """Milliseconds of one call: median of rounds, the slowest rank's."""
        repeat = repeat or self.options.repeat
        for _ in range(2):
            work()
        rounds = []
        for _ in range(3):
            self.sync()
            self.gloo.barrier().wait()
            start = time.perf_counter()
            for _ in range(repeat):
                work()
            self.sync()
            rounds.append((time.perf_counter() - start) / repeat * 1e3)
        return self.together(statistics.median(rounds))

    # ---- exactness -----------------------------------------------------------------------

    def burst(self) -> None:
        """Asynchronous all-reduces in flight together, checked on the device."""
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        flight = []
        total = self.options.burst
        factor = sum(r + 1 for r in range(self.world))
        for k in range(1, total + 1):
            n = (1 << 10, 1 << 16, (1 << 20) + 3, 3 << 20)[k % 4]
            x = torch.full((n,), float((self.rank + 1) * k), device=self.device)
            for _ in range(4):  # the last kernels finish long after the call below
                x = x * 1.0
            flight.append((k, dist.all_reduce(x, async_op=True), x))
            del x
            if len(flight) > 32:
                k_done, work, y = flight.pop(0)
                work.wait()
                wrong += (y * 1.0 != float(factor * k_done)).sum()
        for k_done, work, y in flight:
            work.wait()
            wrong += (y * 1.0 != float(factor * k_done)).sum()
        self.rows["burst operations"] = total
        self.rows["burst wrong elements"] = int(self.together(float(wrong.item())))

    def gradients(self) -> None:
        """DDP's gradients against a synchronous sum of the same backward pass."""
        self.inputs(64)
        self.step(self.net)
        reference = []
        for parameter in self.net.parameters():
            assert parameter.grad is not None
            host = (parameter.grad / self.world).cpu()
            self.gloo.allreduce([host]).wait()
            reference.append(host)
        self.drop_grads()
        ddp = self.ddp()
        different = 0
        for _ in range(3):
            self.step(ddp)
            for parameter, expected in zip(ddp.parameters(), reference, strict=True):
                assert parameter.grad is not None
                different += int((parameter.grad.cpu() != expected).sum())
        self.rows["gradient elements that differ"] = int(self.together(float(different)))

    # ---- speed ---------------------------------------------------------------------------

    def ddp(self) -> DistributedDataParallel:
        """A copy under DDP: the model itself keeps no hooks."""
        return DistributedDataParallel(
            copy.deepcopy(self.net), bucket_cap_mb=BUCKET_MIB, gradient_as_bucket_view=True
        )

    def drop_grads(self) -> None:
        for parameter in self.net.parameters():
            parameter.grad = None

    def step(self, module: nn.Module) -> None:
        module.zero_grad(set_to_none=False)
        module(self.x).square().mean().backward()

    def buckets(self) -> list[torch.Tensor]:
        """Memory of the gradients' size, in buckets."""
        left = sum(p.numel() for p in self.net.parameters())
        size = BUCKET_MIB * MIB // 4
        buckets = []
        while left > 0:
            buckets.append(torch.zeros(min(size, left), device=self.device))
            left -= size
        return buckets

    def communicate(self, buckets: list[torch.Tensor]) -> None:
        works = [dist.all_reduce(bucket, async_op=True) for bucket in buckets]
        for work in works:
            work.wait()

    def gloo_by_hand(self, buckets: list[torch.Tensor], hosts: list[torch.Tensor]) -> None:
        """What a user would write: backward, then every bucket down, summed, up."""
        self.step(self.net)
        for bucket, host in zip(buckets, hosts, strict=True):
            host.copy_(bucket)
            self.gloo.allreduce([host]).wait()
            bucket.copy_(host, non_blocking=True)
        self.sync()

    def speed(self) -> None:
        buckets = self.buckets()
        pin = self.device.type == "cuda"
        hosts = [torch.empty(b.shape, pin_memory=pin) for b in buckets]
        communication = self.time(lambda: self.communicate(buckets))
        if not self.options.batch:
            self.inputs(self.options.probe_batch)
            probe = self.time(lambda: self.step(self.net))
            scale = self.options.ratio * communication / probe
            self.inputs(max(1, round(self.options.probe_batch * scale)))
        else:
            self.inputs(self.options.batch)
        compute = self.time(lambda: self.step(self.net))

        def serialized() -> None:
            self.step(self.net)
            self.sync()
            self.communicate(buckets)
            self.sync()

        one_after_other = self.time(serialized)
        by_hand = self.time(lambda: self.gloo_by_hand(buckets, hosts))
        self.drop_grads()
        ddp = self.ddp()
        step = self.time(lambda: self.step(ddp))
        self.rows |= {
            "parameters (M)": round(sum(p.numel() for p in self.net.parameters()) / 1e6, 1),
            "batch a rank": self.batch,
            "compute only (ms)": round(compute, 1),
            "communication only (ms)": round(communication, 1),
            "serialized (ms)": round(one_after_other, 1),
            "gloo by hand (ms)": round(by_hand, 1),
            "mccl DDP step (ms)": round(step, 1),
            "hidden (%)": round(100 * (1 - (step - compute) / communication), 1),
            "gloo by hand / mccl": round(by_hand / step, 2),
        }

    # ---- a mixed fleet ---------------------------------------------------------------------

    def mixed(self) -> None:
        """Rank 0 on the GPU, the others on the CPU; against the whole batch in one process."""
        device = self.device if self.rank == 0 else torch.device("cpu")
        steps, batch = 20, 32

        def fresh() -> nn.Module:
            torch.manual_seed(3)
            return nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))

        draw = torch.Generator().manual_seed(5)
        data = torch.randn(steps, self.world, batch, 64, generator=draw)
        goal = torch.randn(steps, self.world, batch, 10, generator=draw)
        model = DistributedDataParallel(fresh().to(device))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in zip(data[:, self.rank], goal[:, self.rank], strict=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
        alone = fresh()
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
        for x, y in zip(data, goal, strict=True):
            optimizer.zero_grad()
            nn.functional.mse_loss(alone(x.flatten(0, 1)), y.flatten(0, 1)).backward()
            optimizer.step()
        error = max(
            float((p.detach().cpu() - q.detach()).abs().max())
            for p, q in zip(model.parameters(), alone.parameters(), strict=True)
        )
        self.rows["mixed group, max deviation"] = self.together(error)

    def exact(self) -> bool:
        """Whether everything that was checked came out right."""
        rows = self.rows
        wrong = rows.get("burst wrong elements", 0) + rows.get("gradient elements that differ", 0)
        # Twenty steps of float32 on two kinds of device, summed in another order.
        return wrong == 0 and rows.get("mixed group, max deviation", 0.0) < 1e-4


def rank_main(rank: int, options: argparse.Namespace) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(options.world), "LOCAL_RANK": str(rank)}
    import mccl  # noqa: F401 - registers the backend

    dist.init_process_group(
        "mccl", rank=rank, world_size=options.world, timeout=timedelta(minutes=5)
    )
    bench = Bench(rank, options)
    for name in options.parts:
        if rank == 0:
            print(f"... {name}", flush=True)
        getattr(bench, name)()
    if rank == 0:
        report(bench.rows | {"verdict": "exact" if bench.exact() else "WRONG"}, options)
    dist.destroy_process_group()
    if not bench.exact():
        raise SystemExit(1)


def report(rows: dict[str, Any], options: argparse.Namespace) -> None:
    where = "CPU" if options.cpu else torch.cuda.get_device_name()
    rows = {"device": where, "torch": torch.__version__, "ranks": options.world} | rows
    print(json.dumps(rows))
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parts = ("burst", "gradients", "speed", "mixed")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--burst", type=int, default=640)
    parser.add_argument("--batch", type=int, default=0, help="0: chosen by --ratio")
    parser.add_argument("--probe-batch", type=int, default=8192)
    parser.add_argument("--ratio", type=float, default=1.2, help="compute / communication")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--cpu", action="store_true", help="a small smoke test without a GPU")
    options = parser.parse_args()
    options.port = free_port()
    if options.cpu:
        options.width, options.layers, options.probe_batch = 128, 2, 64
        options.burst, options.repeat = min(options.burst, 40), 2
    mp.spawn(rank_main, (options,), nprocs=options.world)


if __name__ == "__main__":
    main()
