"""The report's figures, one function each, from records to a drawing that says what it shows.

Colours are Okabe and Ito's, told apart with any colour vision; line styles and markers repeat what
colour says. Titles state the finding, computed from the same numbers that are drawn.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from mccl.bench import overlap, train
from mccl.bench.record import Case, Record
from mccl.bench.sweep import TCP, bus_bandwidth
from mccl.bench.table import GB
from mccl.bench.units import format_size

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, VERMILION, YELLOW, GREY = "#56B4E9", "#D55E00", "#F0E442", "#666666"
_CYCLE = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILION)
_MARKERS = "osD^vP"
_OWN = {
    "mccl": BLUE,
    "gloo": ORANGE,
    TCP: GREY,
    "openmpi-tcp": GREEN,
    "openmpi-shm": SKY,
    "mlx-ring": PINK,
    "gloo-staged": ORANGE,
}
_NAMES = {
    TCP: "plain sockets (ceiling)",
    "openmpi-tcp": "OpenMPI, TCP",
    "gloo": "Gloo",
    "openmpi-shm": "OpenMPI, shared memory (no TCP)",
    "mlx-ring": "MLX ring",
    "gloo-staged": "Gloo, staged by hand",
}


def name_of(series: str) -> str:
    """A series in words."""
    return _NAMES.get(series, series)


def colour_of(series: str) -> str:
    """The colour that a series has in every figure."""
    return _OWN.get(series, VERMILION)


def new_figure(columns: int = 1, height: float = 4.4) -> tuple[Any, list[Any]]:
    """A figure with ``columns`` axes side by side, plain frame, light grid."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 10.5, "axes.titlesize": 11, "axes.titleweight": "bold"}):
        figure = Figure(
            figsize=(6.2 * columns + (0.8 if columns == 1 else 0), height), layout="constrained"
        )
        axes = [figure.add_subplot(1, columns, i + 1) for i in range(columns)]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
    return figure, axes


def _bars(cases: Sequence[Case], units: Sequence[float]) -> list[list[float]]:
    """Error bars below and above each case's bus bandwidth: the spread over rounds."""
    below, above = [], []
    for case, unit in zip(cases, units, strict=True):
        fast, slow = case.spread
        middle = bus_bandwidth(case)
        below.append(max(0.0, middle - bus_bandwidth(case, slow)) / unit)
        above.append(max(0.0, bus_bandwidth(case, fast) - middle) / unit)
    return [below, above]


def cluster_bandwidth(record: Record) -> Any:
    """Bus bandwidth and share of goodput by number of hosts (paper, figure 3 left and centre)."""
    figure, (left, right) = new_figure(2)
    leader = str(record.settings["leader"])
    worlds, sizes = sorted(record.labels("ranks")), sorted(record.labels("nbytes"))
    others = [s for s in dict.fromkeys(c.series for c in record.cases) if s not in (leader, TCP)]
    shares: list[float] = []
    rates: dict[int, float] = record.settings["rates"]
    alike = len(set(rates.values())) == 1
    for number, (nbytes, marker) in enumerate(zip(sizes, itertools.cycle(_MARKERS))):
        shift = 0.15 * (number - (len(sizes) - 1) / 2)  # error bars side by side
        for series in (TCP, leader, *others):
            found = [c for w in worlds if (c := record.one(series, ranks=w, nbytes=nbytes))]
            places = [_ranks(c) + shift for c in found]
            look: dict[str, Any] = {
                "color": colour_of(series),
                "linestyle": {TCP: ":", leader: "-"}.get(series, "--"),
                "marker": marker,
                "markersize": 5,
                "label": f"{name_of(series)}, {format_size(nbytes)}",
            }
            units = [1e6 if alike else rates[_ranks(c)] / 8 / 100 for c in found]
            heights = [bus_bandwidth(c) / unit for c, unit in zip(found, units, strict=True)]
            left.errorbar(places, heights, yerr=_bars(found, units), capsize=2, **look)
            if series != TCP:
                percent = [_goodput_share(record, c) for c in found]
                right.plot(places, percent, **look)
                shares += percent if series == leader else []
    right.axhline(98, color=GREY, linewidth=0.9, linestyle="-.", label="98%, the paper's least")
    low, high = (min(shares), max(shares)) if shares else (float("nan"),) * 2
    left.set(
        xlabel="hosts",
        ylabel="bus bandwidth (MB/s)" if alike else "bus bandwidth (% of a link's raw rate)",
        ylim=(0, 1.45 * left.get_ylim()[1]),
        xticks=worlds,
        title=f"All-reduce bandwidth, {worlds[0]} to {worlds[-1]} hosts",
    )
    right.set(
        xlabel="hosts",
        ylabel="% of what plain sockets carry",
        xticks=worlds,
        title=f"{leader} reaches {low:.1f}-{high:.1f}% of plain-socket goodput",
    )
    right.legend(fontsize=8.5, frameon=False)
    left.legend(fontsize=8, frameon=False, ncols=2, loc="upper left")
    return figure


def _ranks(case: Case) -> int:
    ranks = case.labels["ranks"]
    assert isinstance(ranks, int)
    return ranks


def _goodput_share(record: Record, case: Case) -> float:
    labels = case.labels
    ceiling = record.one(TCP, ranks=labels["ranks"], nbytes=labels["nbytes"])
    return 100 * ceiling.median / case.median if ceiling else float("nan")


def sizes_by_bandwidth(record: Record, world: int) -> Any:
    """Time and bus bandwidth by message size for every contestant."""
    figure, (left, right) = new_figure(2)
    leader = str(record.settings["leader"])
    cases = record.find(ranks=world, collective="all_reduce")
    for series, marker in zip(dict.fromkeys(c.series for c in cases), itertools.cycle(_MARKERS)):
        own = sorted((c for c in cases if c.series == series), key=_bytes)
        sizes = [_bytes(c) for c in own]
        look = {
            "color": colour_of(series),
            "marker": marker,
            "markersize": 4,
            "linestyle": ":" if series == TCP else "-",
            "label": name_of(series),
            "linewidth": 2 if series == leader else 1.2,
        }
        if series != TCP:
            left.plot(sizes, [c.median * 1e6 for c in own], **look)
        large = [c for c in own if _bytes(c) >= 1 << 16]
        right.plot([_bytes(c) for c in large], [bus_bandwidth(c) / GB for c in large], **look)
    left.set(
        xscale="log",
        yscale="log",
        xlabel="message (bytes)",
        ylabel="time (µs)",
        title=_ahead_title(record, world, leader),
    )
    right.set(
        xscale="log",
        xlabel="message (bytes)",
        ylabel="bus bandwidth (GB/s)",
        ylim=(0, None),
        title=f"{world} ranks on one machine's loopback",
    )
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.legend(fontsize=8.5, frameon=False)
        ticks = [1 << n for n in range(2, 31, 4)]
        low, high = axis.get_xlim()
        kept = [t for t in ticks if low <= t <= high]
        axis.set_xticks(kept, [format_size(t) for t in kept])
    left.set_xlabel("message")
    right.set_xlabel("message")
    return figure


def _bytes(case: Case) -> int:
    nbytes = case.labels["nbytes"]
    assert isinstance(nbytes, int)
    return nbytes


def _ahead_title(record: Record, world: int, leader: str) -> str:
    ratios = []
    for case in record.find("gloo", ranks=world, collective="all_reduce"):
        own = record.one(leader, ranks=world, collective="all_reduce", nbytes=_bytes(case))
        if own is not None and leader != "gloo":
            ratios.append(case.median / own.median)
    if not ratios:
        return "All-reduce time by size"
    return f"{leader} takes 1/{max(ratios):.0f} to 1/{min(ratios):.1f} of Gloo's time"


def overlap_bars(record: Record) -> Any:
    """The four step times by world size (paper, figure 3 right)."""
    worlds, series = record.labels("ranks"), list(record.settings["series"])
    groups = [(world, name) for world in worlds for name in series]
    figure, (axis,) = new_figure(1)
    figure.set_figwidth(max(7.5, 1.35 * len(groups)))
    looks = zip(overlap.WAYS, (SKY, ORANGE, BLUE, PINK), ("", "//", "", ".."), strict=True)
    for number, (way, colour, hatch) in enumerate(looks):
        cases = [record.one(name, way=way, ranks=world) for world, name in groups]
        heights = [case.median if case else float("nan") for case in cases]
        spots = [place + 0.2 * (number - 1.5) for place in range(len(groups))]
        axis.bar(spots, heights, 0.19, color=colour, hatch=hatch, edgecolor="white", label=way)
    top = axis.get_ylim()[1]
    for place, (world, name) in enumerate(groups):
        share = 100 * overlap.hidden_share(record, name, ranks=world)
        axis.text(place, top * 1.01, f"{share:.1f}%\nhidden", ha="center", fontsize=9.5)
    axis.set_ylim(0, top * 1.15)
    labels = [f"{world} ranks\n{name_of(name)}" for world, name in groups]
    axis.set_xticks(range(len(groups)), labels)
    hidden = [100 * overlap.hidden_share(record, series[0], ranks=world) for world in worlds]
    span = f"{min(hidden):.1f}-{max(hidden):.1f}%" if len(hidden) > 1 else f"{hidden[0]:.1f}%"
    bound = 100 * record.settings["bound"]
    axis.set(
        ylabel="step time (s)",
        title=f"{series[0]} hides {span} of communication ({bound:.1f}% is possible)",
    )
    axis.legend(frameon=False, ncols=4, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    return figure


def throughput(record: Record) -> Any:
    """Samples a second against linear, and where a step's time goes (paper, figure 4)."""
    figure, (left, right) = new_figure(2)
    backend = str(record.settings["backend"])
    worlds = sorted(record.labels("ranks"))
    single = record.one(train.COMPUTE, ranks=1)
    if single is not None:
        rate = train.throughput(single)
        left.plot(
            worlds,
            [rate * w for w in worlds],
            color=GREY,
            linestyle=":",
            label="linear from 1 rank",
        )
    for series, label, marker in (
        (train.COMPUTE, "compute alone, same ranks", "^"),
        (backend, backend, "o"),
        (train.STAGED, name_of(train.STAGED), "s"),
    ):
        cases = [c for w in worlds if (c := record.one(series, ranks=w)) is not None]
        left.plot(
            [c.labels["ranks"] for c in cases],
            [train.throughput(c) for c in cases],
            color=SKY if series == train.COMPUTE else colour_of(series),
            marker=marker,
            linestyle="--" if series == train.COMPUTE else "-",
            label=label,
        )
    left.set(
        xlabel="ranks",
        ylabel="samples/s",
        ylim=(0, None),
        xticks=worlds,
        title=_faster_title(record, backend, worlds[-1]),
    )
    left.legend(frameon=False, fontsize=9)
    _step_split(right, record, backend, [w for w in worlds if w > 1])
    return figure


def _faster_title(record: Record, backend: str, world: int) -> str:
    own, staged = record.one(backend, ranks=world), record.one(train.STAGED, ranks=world)
    if own is None or staged is None:
        return "Training throughput"
    return f"{staged.median / own.median:.2f}x the throughput of hand-staged Gloo at {world} ranks"


def _step_split(axis: Any, record: Record, backend: str, worlds: Sequence[int]) -> None:
    labels, exposed_shares = [], []
    for place, (world, series) in enumerate(
        (w, s) for w in worlds for s in (backend, train.STAGED)
    ):
        case, compute = record.one(series, ranks=world), record.one(train.COMPUTE, ranks=world)
        labels.append(f"{world} ranks\n{name_of(series)}")
        if case is None or compute is None:
            continue
        exposed = max(0.0, case.median - compute.median)
        axis.bar(
            place, compute.median * 1e3, 0.6, color=SKY, label="compute" if place == 0 else None
        )
        axis.bar(
            place,
            exposed * 1e3,
            0.6,
            bottom=compute.median * 1e3,
            color=VERMILION,
            hatch="//",
            edgecolor="white",
            label="exposed communication" if place == 0 else None,
        )
        axis.text(
            place,
            (compute.median + exposed) * 1e3,
            f"+{1e3 * exposed:.0f} ms",
            ha="center",
            va="bottom",
            fontsize=9,
        )
        if series == backend:
            exposed_shares.append(100 * exposed / case.median)
    axis.set_xticks(range(len(labels)), labels)
    title = (
        f"{max(exposed_shares):.1f}% of a step is exposed communication" if exposed_shares else ""
    )
    axis.set(ylabel="step time (ms)", title=title)
    if labels:
        axis.margins(y=0.2)
        axis.legend(frameon=False, fontsize=9, loc="upper left")


def convergence(record: Record) -> Any:
    """Validation loss and accuracy by optimizer step for every world size (paper, figure 5)."""
    figure, (left, right) = new_figure(2)
    worlds = record.labels("ranks")
    finals = []
    for world, colour, marker in zip(worlds, itertools.cycle(_CYCLE), itertools.cycle(_MARKERS)):
        found = {case.labels["what"]: case.samples for case in record.find(ranks=world)}
        steps = found["step"]
        look = {
            "color": colour,
            "marker": marker,
            "markersize": 4,
            "label": f"{world} ranks" if world > 1 else "1 rank",
        }
        left.plot(steps, found["validation_loss"], **look)
        right.plot(steps, [100 * a for a in found["validation_accuracy"]], **look)
        finals.append(found["validation_loss"][-1])
    ordered = all(later < earlier for earlier, later in itertools.pairwise(finals))
    claim = (
        "More ranks reach a lower loss at the same step"
        if ordered and len(finals) > 1
        else ("Validation loss by step")
    )
    left.set(xlabel="optimizer step", ylabel="validation loss", title=claim)
    right.set(
        xlabel="optimizer step",
        ylabel="validation accuracy (%)",
        title=str(record.settings["data"]).partition(" (")[0],
    )
    left.legend(frameon=False, fontsize=9, loc="upper right")
    right.legend(frameon=False, fontsize=9, loc="lower right")
    return figure


def endurance(record: Record) -> Any:
    """Resident memory and descriptors over a stress run."""
    figure, (left, right) = new_figure(2)
    memory = record.find(what="resident_bytes")
    span = max(case.facts["elapsed_s"] for case in memory)
    for case, colour in zip(memory, itertools.cycle(_CYCLE)):
        times = [span * i / max(1, len(case.samples) - 1) / 60 for i in range(len(case.samples))]
        label = f"rank {case.labels['rank']}"
        left.plot(times, [n / 2**20 for n in case.samples], color=colour, label=label)
        fds = record.find(
            None, what="descriptors", ranks=case.labels["ranks"], rank=case.labels["rank"]
        )
        right.plot(times, fds[0].samples, color=colour, label=label)
    operations = memory[0].facts["operations"]
    wrong = sum(case.facts["wrong"] for case in memory)
    left.set(
        xlabel="minutes",
        ylabel="resident memory (MiB)",
        ylim=(0, None),
        title=f"{operations:,.0f} collectives a rank, {wrong:.0f} wrong elements",
    )
    right.set(
        xlabel="minutes",
        ylabel="open descriptors",
        ylim=(0, None),
        title="Descriptors over the same time",
    )
    for axis in (left, right):
        axis.legend(frameon=False, fontsize=9, loc="lower right")
    return figure
