"""What a person sees of the demo: a progress line while it runs, a report at the end."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from mccl.demo.settings import Outcome, Settings, bus_bandwidth


class Progress:
    """A bar with loss, samples/s and exposed communication; plain lines where no terminal is."""

    def __init__(self, settings: Settings, ranks: int, *, silent: bool) -> None:
        self._settings = settings
        self._silent = silent
        self._ranks = ranks
        self._title = settings.title or f"{ranks} ranks"
        self._bar: Any = None
        self._task: Any = None
        self._began = self._shown = 0.0
        self._exposed = 0.0
        rich = importlib.util.find_spec("rich") is not None
        if not silent and rich and sys.stdout.isatty():
            self._bar = _bar()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, data: str, parameters: int) -> None:
        """Called once, when training starts."""
        self._began = time.perf_counter()
        if self._silent:
            return
        say(f"{self._title}: {data}; {parameters / 1e6:.2f} M parameters")
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(
                self._title, total=self._settings.steps, loss="", rate="", exposed=""
            )

    def step(self, done: int, loss: float, exposed: float) -> None:
        """Called after each step; `exposed` is in seconds."""
        if self._silent:
            return
        # Smoothed, or the figure would be too quick to read.
        self._exposed += (exposed - self._exposed) * (1.0 if done == 1 else 0.1)
        rate = done * self._settings.batch / (time.perf_counter() - self._began)
        words = {
            "loss": f"loss {loss:.3f}",
            "rate": f"{rate:5.0f} samples/s",
            "exposed": f"exposed {self._exposed * 1e3:4.1f} ms" if self._ranks > 1 else "",
        }
        if self._bar is not None:
            self._bar.update(self._task, completed=done, **words)
        elif done % max(1, self._settings.steps // 10) == 0:
            say(f"  step {done:4d}/{self._settings.steps}  " + "  ".join(words.values()))


def _bar() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    return Bar(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[rate]}"),
        TextColumn("{task.fields[exposed]}"),
        TimeRemainingColumn(),
    )


def say(text: str) -> None:
    """One line, at once, whoever is reading."""
    print(text, flush=True)


# ---- the report ------------------------------------------------------------------------------


def report(many: Outcome, one: Outcome | None) -> Iterator[str]:
    """The end of the demo, line by line."""
    yield ""
    yield from _result(many, one)
    yield ""
    yield from _network(many)
    yield ""
    verdict = "yes, bit for bit" if many.identical else "NO"
    yield f"All {many.ranks} ranks hold the same weights: {verdict} ({many.digests[0][:16]})"
    if not many.identical:
        for rank, found in enumerate(many.digests):
            yield f"  rank {rank}: {found[:16]}"


def _result(many: Outcome, one: Outcome | None) -> Iterator[str]:
    columns = [many, *([one] if one else [])]
    heads = [f"{run.ranks} rank{'s' if run.ranks > 1 else ''}" for run in columns]
    yield f"{'':24s}" + "".join(f"{head:>16s}" for head in heads)
    rows = [
        ("held-out accuracy", [f"{run.accuracy:.1%}" for run in columns]),
        ("last loss (mean of 20)", [f"{_mean(run.losses[-20:]):.4f}" for run in columns]),
        ("samples/s", [f"{run.samples_per_second:.0f}" for run in columns]),
        ("time a step", [f"{run.step_seconds * 1e3:.1f} ms" for run in columns]),
        ("training", [f"{run.seconds:.1f} s" for run in columns]),
    ]
    for name, values in rows:
        yield f"{name:24s}" + "".join(f"{value:>16s}" for value in values)
    if one is not None:
        scaling = many.samples_per_second / one.samples_per_second
        yield f"{'speed-up':24s}{scaling:>15.2f}x{f'({scaling / many.ranks:.0%} of linear)':>20s}"
        yield ""
        yield (
            f"Same global batch of {many.batch}, same order: the losses of the two runs differ by "
            f"{difference(many, one, 1):.1g} at the first step and by at most "
            f"{difference(many, one, 10):.1g} in the first 10 (rounding, which Adam amplifies)."
        )


def difference(many: Outcome, one: Outcome, steps: int) -> float:
    """Largest relative difference of the losses over the first steps; later, rounding has grown."""
    pairs = list(zip(many.losses[:steps], one.losses[:steps], strict=True))
    return max((abs(a - b) / abs(b) for a, b in pairs), default=0.0)


def _network(many: Outcome) -> Iterator[str]:
    traffic = many.traffic
    timed = max(1, traffic.collectives // max(1, many.buckets))
    yield (
        f"Network ({many.backend}): {traffic.collectives} all-reduces in {timed} steps, "
        f"{traffic.payload_bytes / 1e9:.2f} GB of gradients "
        f"({traffic.payload_bytes / timed / 1e6:.1f} MB in {many.buckets} buckets a step)"
    )
    if traffic.sent_bytes is not None:
        yield f"  rank 0 sent {traffic.sent_bytes / 1e9:.2f} GB, headers included"
    if many.device != "cpu":
        yield "  bandwidth and overlap are measured on CPU tensors only"
        return
    step = traffic.payload_bytes / timed
    speed = bus_bandwidth(step, traffic.alone, many.ranks)
    yield (
        f"  one step's gradients, nothing else going on: {traffic.alone * 1e3:.1f} ms, "
        f"{speed / 1e9:.2f} GB/s bus bandwidth"
    )
    yield (
        f"  in training, buckets were on their way for {traffic.flight / timed * 1e3:.1f} ms "
        "a step (waiting for the other rank included):"
    )
    yield (
        f"  {traffic.hidden:.0%} of that hidden behind backward, "
        f"{traffic.exposed / timed * 1e3:.1f} ms a step exposed"
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
