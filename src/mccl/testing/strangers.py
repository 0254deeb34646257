"""Strangers at the door while a job trains: ``python -m mccl.testing.strangers``.

Ranks train with DDP over mccl until ten thousand connections have tried to get in (``knock.py``
says how), then the same training runs undisturbed. It must come out bit for bit the same, nobody
may have been admitted, and no rank may hold a descriptor or thread that it did not hold before.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import multiprocessing
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel

from mccl.bench.stress import process_usage
from mccl.communicator import connector
from mccl.testing.knock import EXPECTED, Answer, Attempt, Recorder, Recording, Stranger

ROUND = 10
"""Steps between two looks at whether to stop."""

_KNOCKERS = 4
_LIMIT = 300.0
_SETTLE = 30.0

_context = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Trained:
    """What a rank has to say at the end."""

    steps: int
    digest: str
    """SHA-256 of its parameters."""
    seconds: float


@dataclass
class Findings:
    """What came of it."""

    answers: Counter[tuple[Attempt, Answer]] = field(default_factory=Counter)
    before: list[dict[str, float]] = field(default_factory=list)
    after: list[dict[str, float]] = field(default_factory=list)
    disturbed: list[Trained] = field(default_factory=list)
    undisturbed: list[Trained] = field(default_factory=list)

    @property
    def unexpected(self) -> int:
        """Answers that no stranger should get."""
        return sum(
            count
            for (attempt, answer), count in self.answers.items()
            if answer not in EXPECTED[attempt] | {Answer.NOTHING}
        )

    @property
    def leaked(self) -> bool:
        """Whether a rank holds descriptors or threads that it did not hold before."""
        return any(
            after[what] > before[what]
            for before, after in zip(self.before, self.after, strict=True)
            for what in ("descriptors", "threads")
        )

    @property
    def unharmed(self) -> bool:
        """Whether both trainings gave the same parameters on all ranks."""
        return len({rank.digest for rank in (*self.disturbed, *self.undisturbed)}) == 1

    @property
    def good(self) -> bool:
        """Whether all is as it must be."""
        return bool(self.undisturbed) and self.unharmed and not (self.leaked or self.unexpected)


class Job:
    """The ranks of one training, as processes; ``steps`` None: until ``stop`` is called."""

    def __init__(self, world: int, steps: int | None) -> None:
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        secret = secrets.token_hex(32)
        self._pipes, self._processes = [], []
        for rank in range(world):
            ours, theirs = _context.Pipe()
            process = _context.Process(
                target=_rank,
                args=(theirs, rank, world, self._store.port, secret, steps),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def hear(self) -> list[Any]:
        """The next word of every rank. Raises RuntimeError when one says nothing."""
        found = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(_LIMIT):
                raise RuntimeError(f"rank {rank} said nothing for {_LIMIT:g} s; expected a word")
            found.append(pipe.recv())
        return found

    def usage(self) -> list[dict[str, float]]:
        """What every rank holds now."""
        for pipe in self._pipes:
            pipe.send("usage")
        return self.hear()

    def stop(self) -> None:
        """Let the training end."""
        self._pipes[0].send("stop")

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()


def train(world: int, steps: int) -> list[Trained]:
    """Undisturbed training of so many steps."""
    job = Job(world, steps)
    try:
        job.hear()
        return job.hear()
    finally:
        job.end()


def run(world: int, connections: int, seed: int) -> Findings:
    """Disturbed training, then the same undisturbed."""
    found = Findings()
    job = Job(world, None)
    try:
        recordings = [recording for rank in job.hear() for recording in rank]
        found.before = job.usage()
        with ThreadPoolExecutor(_KNOCKERS) as pool:
            shares = [len(range(i, connections, _KNOCKERS)) for i in range(_KNOCKERS)]
            knocking = [
                pool.submit(_knock, recordings, f"{seed}/{i}", share)
                for i, share in enumerate(shares)
            ]
            for each in knocking:
                found.answers += each.result()
        # The listener still has to notice that the last of them hung up.
        deadline = time.monotonic() + _SETTLE
        while True:
            found.after = job.usage()
            if not found.leaked or time.monotonic() > deadline:
                break
        job.stop()
        found.disturbed = job.hear()
    finally:
        job.end()
    found.undisturbed = train(world, found.disturbed[0].steps)
    return found


def _knock(
    recordings: list[Recording], seed: str, connections: int
) -> Counter[tuple[Attempt, Answer]]:
    stranger, answers = Stranger(recordings, seed), Counter[tuple[Attempt, Answer]]()
    kinds = list(Attempt)
    for number in range(connections):
        attempt = kinds[number % len(kinds)]
        answers[attempt, stranger.knock(attempt)] += 1
    for answer in stranger.leave():
        if answer is not Answer.NOTHING:
            answers[Attempt.HALF_OPEN, answer] += 1
    return answers


def _rank(pipe: Any, rank: int, world: int, port: int, secret: str, steps: int | None) -> None:
    """One process of a job."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        MCCL_SECRET=secret,
    )
    torch.set_num_threads(1)
    recorder = Recorder()
    setattr(connector, "Initiator", recorder)  # noqa: B010 - mypy forbids the plain form
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("mccl", store=store, rank=rank, world_size=world)
    pipe.send(_train(pipe, rank, steps, recorder))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def _train(pipe: Any, rank: int, steps: int | None, recorder: Recorder) -> Trained:
    torch.manual_seed(1)
    layers = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    )
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    samples = torch.Generator().manual_seed(rank)
    done, stop = 0, torch.zeros(1)
    while not stop.item():
        for _ in range(ROUND):
            inputs = torch.randn(16, 64, generator=samples)
            labels = torch.randint(10, (16,), generator=samples)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            torch.autograd.backward(loss)
            optimizer.step()
        done += ROUND
        if done == ROUND:
            pipe.send(recorder.recordings)  # all links are open now
            began = time.monotonic()
        stop.fill_(done == steps)
        while pipe.poll():
            if pipe.recv() == "usage":
                pipe.send(process_usage())
            else:
                stop.fill_(1)
        dist.broadcast(stop, 0)
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return Trained(done, digest.hexdigest(), time.monotonic() - began)


def report(found: Findings) -> str:
    """The findings in words."""
    lines = []
    for attempt in Attempt:
        answers = {a: n for (kind, a), n in found.answers.items() if kind is attempt}
        told = "; ".join(f"{answer}: {count}" for answer, count in sorted(answers.items()))
        lines.append(f"{attempt:<20} {sum(answers.values()):>6}  {told}")
    lines.append(f"answers that no stranger should get: {found.unexpected}")
    for rank, (before, after) in enumerate(zip(found.before, found.after, strict=True)):
        lines.append(
            f"rank {rank}: {before['resident_bytes'] / 2**20:.1f} -> "
            f"{after['resident_bytes'] / 2**20:.1f} MiB, descriptors "
            f"{before['descriptors']} -> {after['descriptors']}, threads "
            f"{before['threads']} -> {after['threads']}"
        )
    for name, ranks in (("disturbed", found.disturbed), ("undisturbed", found.undisturbed)):
        lines.append(f"{name}: {ranks[0].steps} steps in {ranks[0].seconds:.1f} s")
    lines.append(f"parameters bit for bit the same: {'yes' if found.unharmed else 'NO'}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 0 when all went as it must."""
    parser = argparse.ArgumentParser(prog="python -m mccl.testing.strangers", description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(argv)
    found = run(options.ranks, options.connections, options.seed)
    with contextlib.suppress(BrokenPipeError):
        print(report(found), flush=True)
    return int(not found.good)


if __name__ == "__main__":
    # Not as __main__, so that the fork server's children find the same classes.
    from mccl.testing.strangers import main as run_strangers

    sys.exit(run_strangers())
