"""Check the paper's ViT (113.5 M parameters) and say how long it took and how much memory.

    python bench/numerics_vit.py --batch 8 --device cpu

Peak memory is the process's largest resident size (getrusage).
"""

from __future__ import annotations

import argparse

import torch

from mccl.models import VisionTransformer
from mccl.numerics import check_model


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--once", action="store_true", help="leave out the second, equal run")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = VisionTransformer.paper()
    count = sum(p.numel() for p in model.parameters())
    print(
        f"{count / 1e6:.1f} M parameters, batch {options.batch}, {torch.get_num_threads()} threads",
        flush=True,
    )
    images = torch.randn(options.batch, 3, 32, 32)
    report = check_model(
        model, (images,), device=options.device, deterministic=not options.once, progress=True
    )
    print(report)
    return report.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
