"""``mccl plan``: predict what a fleet of a given size would do, and advise."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mccl.model import Network, Workload
    from mccl.model.forecast import Row

HELP = "predict bandwidth, step time and efficiency of a fleet, and advise"


def add_parser(subparsers: Any) -> None:
    """Add ``plan``."""
    parser = subparsers.add_parser(
        "plan",
        help=HELP,
        description="Simulate the all-reduce plans on a described network and predict bus "
        "bandwidth, training step and efficiency. Nothing is measured or sent.",
    )
    add = parser.add_argument
    add("--hosts", default="200", metavar="N[,N…]", help="one number: that and smaller fleets")
    add("--bucket-mb", default="25", metavar="MB[,MB…]", help="DDP's bucket_cap_mb (MiB)")
    add("--link", default="10G", help="rate of a host's link (default: %(default)s)")
    add("--mtu", type=int, default=9000, help="bytes of a frame (default: %(default)s)")
    add("--rtt", default="0.59ms", help="round trip of two hosts (default: %(default)s)")
    add("--hop", metavar="TIME", help="cost of a hop (default: half the round trip)")
    add("--fit", nargs="+", metavar="JSON", help="take hop and rate from records of mccl bench")
    add("--group", type=int, metavar="N", help="hosts a switch (default: the best that divides)")
    add("--oversubscription", type=float, default=1.0, metavar="X", help="of a switch's uplink")
    add(
        "--dealt",
        action="store_true",
        help="with --tune: ranks are dealt out over the switches, not numbered by switch",
    )
    add("--tune", type=Path, metavar="FILE", help="write the fastest algorithms for MCCL_TUNING")
    add("--model", metavar="NAME", help="a training step of the paper: vit-113m, resnet-31m, …")
    add("--step-ms", type=float, metavar="MS", help="your step on one host, without network")
    add("--gradient-mb", type=float, metavar="MB", help="your gradients a step (10^6 bytes)")
    add("--decode-layers", type=int, metavar="N", help="predict inference of a model as well")
    add("--hidden", type=int, default=4096, help="its width (default: %(default)s)")
    add("--token-ms", type=float, default=30.0, help="a token on one host (default: %(default)s)")
    add("--json", action="store_true", help="everything as JSON, for programs")
    add("--plot", type=Path, metavar="PNG", help="write a figure (needs matplotlib)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the parsed command; 2 where an option makes no sense."""
    try:
        return _run(options)
    except (ValueError, OSError) as error:
        print(f"mccl plan: {error}", file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    from mccl.model.forecast import MIB, advice, forecast

    worlds = _worlds(options.hosts)
    network, notes = _network(options, max(worlds))
    workload = _workload(options)
    buckets = [round(mb * MIB) for mb in _numbers(options.bucket_mb, "--bucket-mb")]
    rows = forecast(network, worlds, buckets, workload, options.group)
    said = advice(rows, network, workload)
    decode = _decode(options, network, worlds) if options.decode_layers else []
    if options.tune is not None:
        options.tune.write_text(_tuning(network, worlds, options.group, options.dealt))
        said = [*said, f"Set MCCL_TUNING={options.tune} on every rank, with one text on all hosts."]
    if options.plot is not None:
        from mccl.model import plot

        plot.save(rows, network.rate(-1), options.plot)
    if options.json:
        print(json.dumps(_as_json(network, workload, rows, said, decode, notes), indent=1))
        return 0
    print(
        f"{network.rate(-1) / 1e9:.3f} GB/s TCP goodput, {network.hop * 1e6:.0f} µs a hop"
        + (f"; step of {workload.name}" if workload else "")
    )
    for note in notes:
        print(f"note: {note}")
    _show(rows)
    for line in decode:
        print(
            f"{line['hosts']:5d} hosts, {line['strategy']:16s} tokens/s: "
            f"{line['per_sequence']:6.1f} a sequence, {line['total']:7.1f} in all; "
            f"{line['communication_ms']:6.2f} ms a token on the network"
        )
    print()
    for sentence in said:
        print(f"> {sentence}")
    if options.plot is not None:
        print(f"\nfigure: {options.plot}")
    return 0


def _numbers(text: str, name: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ValueError(f"{name} {text!r} is no list of numbers, such as 25,50") from error
    if min(numbers) <= 0:
        raise ValueError(f"{name} {text!r}: expected numbers above 0")
    return numbers


def _worlds(text: str) -> list[int]:
    given = sorted({int(number) for number in _numbers(text, "--hosts")})
    if min(given) < 1:
        raise ValueError(f"--hosts {text!r}: expected whole numbers above 0")
    if len(given) > 1 or given[0] < 8:
        return given
    sizes = given
    while sizes[0] >= 16 and len(sizes) < 4:
        sizes = [sizes[0] // 2, *sizes]
    return sizes


def _network(options: argparse.Namespace, hosts: int) -> tuple[Network, list[str]]:
    from mccl.model import Network, fit, goodput, read
    from mccl.model.units import parse_link, parse_time

    if options.group is not None and options.group < 2:
        raise ValueError(f"--group {options.group}: a group has 2 hosts or more")
    notes: list[str] = []
    if options.fit:
        found = fit(read(Path(name) for name in options.fit))
        notes = [*found.warnings, f"fit: worst residual {found.worst:.1%}"]
        network = Network.of(found.hockney, hosts)
    else:
        hop = parse_time(options.hop) if options.hop else parse_time(options.rtt) / 2
        network = Network(hosts, goodput(parse_link(options.link), options.mtu), hop)
    return dataclasses.replace(network, oversubscription=options.oversubscription), notes


def _tuning(network: Network, worlds: Sequence[int], group: int | None, dealt: bool) -> str:
    """The text of a tuning file: for each world the ranks as one group, and in groups."""
    from mccl.model import tune
    from mccl.plans import tuning

    entries = []
    for world in worlds:
        if world == 1:
            continue
        groups = None if group is None else _grouped(world, group, dealt)
        hosts = dataclasses.replace(network, hosts=world)
        if groups is not None and network.oversubscription > 1:
            hosts = dataclasses.replace(hosts, switches=groups)
        entries.append(tune.entry(hosts, world))
        if groups is not None:
            entries.append(tune.entry(hosts, world, groups))
    return tuning.dump(
        entries,
        {
            "goodput": network.rate(-1),
            "hop": network.hop,
            "gamma": network.gamma,
            "oversubscription": network.oversubscription,
        },
    )


def _grouped(world: int, group: int, dealt: bool) -> tuple[tuple[int, ...], ...] | None:
    """The groups that MCCL_GROUPS would make of ``group``, or, dealt out, as many."""
    count = -(-world // group)
    if count == 1:
        return None
    if dealt:
        return tuple(tuple(range(first, world, count)) for first in range(count))
    return tuple(tuple(range(first, min(first + group, world))) for first in range(0, world, group))


def _workload(options: argparse.Namespace) -> Workload | None:
    from mccl.model import WORKLOADS, Workload

    if (options.step_ms is None) != (options.gradient_mb is None):
        raise ValueError("--step-ms and --gradient-mb describe a step together: give both")
    if options.step_ms is not None:
        return Workload("your model", options.step_ms / 1e3, round(options.gradient_mb * 1e6))
    if options.model is None:
        return None
    if options.model not in WORKLOADS:
        raise ValueError(
            f"--model {options.model!r} is not known; expected one of {', '.join(WORKLOADS)}, or "
            "--step-ms and --gradient-mb"
        )
    return WORKLOADS[options.model]


def _decode(
    options: argparse.Namespace, network: Network, worlds: Sequence[int]
) -> list[dict[str, Any]]:
    from mccl.model import inference

    layers, hidden, compute = options.decode_layers, options.hidden, options.token_ms / 1e3
    lines = []
    for world in worlds:
        found = {"replicated": inference.replicated(world, compute=compute)}
        if 1 < world <= layers:
            found["pipeline"] = inference.pipeline(
                network, world, hidden=hidden, compute=compute, sequences=world
            )
            found["tensor parallel"] = inference.tensor_parallel(
                network, world, layers, hidden=hidden, compute=compute
            )
        lines += [
            {
                "hosts": world,
                "strategy": name,
                "per_sequence": rate.per_sequence,
                "total": rate.total,
                "communication_ms": rate.communication * 1e3,
            }
            for name, rate in found.items()
        ]
    return lines


def _show(rows: Sequence[Row]) -> None:
    from mccl.model.forecast import MIB, best

    print(
        f"\n{'hosts':>5} {'bucket':>7}  {'algorithm':<16} {'bucket ms':>9} {'GB/s':>6} {'':>5}",
        end="",
    )
    stepped = any(row.step is not None for row in rows)
    print(f" {'step ms':>8} {'exposed':>8} {'hidden':>7} {'efficiency':>10}" if stepped else "")
    for row in rows:
        name = f"{row.algorithm} ({row.group})" if row.group else row.algorithm
        mark = "*" if row is best(rows, row.world, row.bucket) else " "
        text = (
            f"{row.world:5d} {row.bucket / MIB:4g} MB {mark}{name:<16} {row.seconds * 1e3:9.1f} "
            f"{row.busbw / 1e9:6.2f} {row.share:5.0%}"
        )
        if row.step is not None:
            s = row.step
            text += (
                f" {s.seconds * 1e3:8.0f} {s.exposed * 1e3:8.0f} {s.hidden:7.1%} "
                f"{s.efficiency:10.1%}"
            )
        print(text)


def _as_json(
    network: Network,
    workload: Workload | None,
    rows: Sequence[Row],
    said: Sequence[str],
    decode: Sequence[dict[str, Any]],
    notes: Sequence[str],
) -> dict[str, Any]:
    def row_dict(row: Row) -> dict[str, Any]:
        found = dataclasses.asdict(row)
        if row.step is not None:
            found["step"] |= {
                "seconds": row.step.seconds,
                "hidden": row.step.hidden,
                "efficiency": row.step.efficiency,
            }
        return found

    return {
        "network": {
            "goodput": network.rate(-1),
            "hop": network.hop,
            "gamma": network.gamma,
            "oversubscription": network.oversubscription,
        },
        "workload": None if workload is None else dataclasses.asdict(workload),
        "rows": [row_dict(row) for row in rows],
        "decode": list(decode),
        "advice": list(said),
        "notes": list(notes),
    }
