"""``mccl check``: compare a model on a device with float64 on the CPU, layer by layer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add ``check``."""
    parser = subparsers.add_parser(
        "check",
        help="compare a model on a device with float64 on the CPU, layer by layer",
        description="Run every operator of a model, forward and backward, on a device and in "
        "float64 on the CPU, and name the layers that differ. Exit code: 0 nothing differs, 1 "
        "something does, 2 the check could not be made.",
    )
    parser.add_argument(
        "model",
        metavar="MODULE:FACTORY",
        help="what makes the model: a function or class without arguments, returning a module or "
        "(module, tuple of inputs); MODULE may be a path to a .py file",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="SHAPE[:DTYPE]",
        help="an argument of forward, such as 8x3x32x32 or 8x65:int64<1000 (integers below 1000); "
        "give one for each argument, at the shapes of production",
    )
    parser.add_argument("--device", default="auto", help="mps, cuda, cpu or auto (%(default)s)")
    parser.add_argument("--eval", action="store_true", help="check in evaluation mode")
    parser.add_argument(
        "--layers", action="append", metavar="PATTERN", help="layer names to check, such as 'enc.*'"
    )
    parser.add_argument(
        "--sweep",
        nargs="?",
        const="lengths",
        metavar="lengths|N,N,...",
        help="repeat calls at lengths around powers of two, or at those given, for batch and "
        "channels 1, 2 and 4",
    )
    parser.add_argument("--no-end-to-end", action="store_true", help="layers only")
    parser.add_argument("--once", action="store_true", help="do not test for non-determinism")
    parser.add_argument("--allow-tf32", action="store_true", help="accept TF32 products on CUDA")
    parser.add_argument("--seed", type=int, default=0, help="of inputs, gradients and masks (0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    parser.add_argument(
        "--repro",
        type=Path,
        metavar="FOLDER",
        help="write a stand-alone script for the worst finding of each layer",
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the parsed command."""
    from mccl.errors import UsageError
    from mccl.numerics.source import example_inputs, load_model

    try:
        model, inputs = load_model(options.model, options.seed)
        if options.input:
            inputs = example_inputs(options.input, options.seed)
        if inputs is None:
            raise UsageError(
                f"{options.model} returns no example inputs; give --input SHAPE for each argument"
            )
        if options.eval:
            model.eval()
        if options.sweep:
            return _sweep(options, model, inputs)
        return _check(options, model, inputs)
    except UsageError as error:
        print(f"mccl check: {error}", file=sys.stderr)
        return 2


def _device(asked: str) -> str:
    import torch

    if asked != "auto":
        return asked
    if torch.backends.mps.is_available():
        return "mps"
    return "cuda" if torch.cuda.is_available() else "cpu"


def _check(options: argparse.Namespace, model: Any, inputs: Any) -> int:
    from mccl.numerics import check_model, write_script

    device = _device(options.device)
    report = check_model(
        model,
        inputs,
        device=device,
        layers=options.layers or ("*",),
        end_to_end=not options.no_end_to_end,
        deterministic=not options.once,
        allow_tf32=options.allow_tf32,
        seed=options.seed,
        progress=not options.quiet and sys.stderr.isatty(),
    )
    print(report)
    if options.json:
        options.json.write_text(report.to_json())
    if options.repro:
        written: set[str] = set()
        for finding in report.findings:
            if finding.call is None or finding.name in written:
                continue
            written.add(finding.name)
            label = (finding.name or "model").replace(".", "_")
            name = f"{label}_{finding.phase}.py"
            print("wrote", write_script(finding, options.repro / name, device=device))
    return report.exit_code


def _sweep(options: argparse.Namespace, model: Any, inputs: Any) -> int:
    from mccl.errors import UsageError
    from mccl.numerics import sweep_model
    from mccl.numerics.sweep import LENGTHS

    lengths = LENGTHS
    if options.sweep != "lengths":
        try:
            lengths = tuple(int(word) for word in options.sweep.split(","))
        except ValueError as error:
            raise UsageError(
                f"--sweep {options.sweep!r}: expected 'lengths' or numbers such as 65535,65536"
            ) from error
    swept = sweep_model(
        model,
        inputs,
        device=_device(options.device),
        layers=options.layers or ("*",),
        lengths=lengths,
        seed=options.seed,
        progress=not options.quiet and sys.stderr.isatty(),
    )
    print(swept)
    return swept.exit_code
