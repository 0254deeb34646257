"""Check healthy models on a CUDA GPU: TF32 off must pass, TF32 on must be named as such.

    python bench/numerics_cuda.py [--large] [--json FILE]

Exit code 0 when all of this holds:
1. with TF32 off (matmul and convolutions), no finding on any model;
2. with TF32 on, at least one finding, every finding of kind "tf32", and only in layers that
   multiply matrices or convolve;
3. with TF32 on and allow_tf32=True, no finding;
4. torch.stft on the GPU agrees with the float64 reference around 2^16 and 2^17 samples.
--large adds the paper's 113.5 M ViT at batch 8.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mccl.models import GroupNormResNet, VisionTransformer
from mccl.numerics import MultiResolutionSTFTLoss, check_model
from mccl.numerics.mrstft import check_stft

PRODUCTS = ("linear", "conv", "matmul", "attention", "lstm", "gru", "einsum", "bmm", "__matmul__")


class Losses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Conv1d(1, 1, 33, padding=16)
        self.loss = MultiResolutionSTFTLoss()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.loss(self.filter(x).squeeze(1), y.squeeze(1))


def models(large: bool) -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    torch.manual_seed(0)
    made: dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]] = {
        "vit": (
            VisionTransformer(dim=192, depth=4, heads=6, hidden=768),
            (torch.randn(8, 3, 32, 32),),
        ),
        "resnet": (GroupNormResNet(width=32, blocks=(2, 2)), (torch.randn(8, 3, 32, 32),)),
        "transformer, dropout": (
            nn.TransformerEncoderLayer(128, 4, 256, 0.1, batch_first=True),
            (torch.randn(4, 33, 128),),
        ),
        "lstm": (nn.LSTM(64, 64, 2, batch_first=True), (torch.randn(4, 20, 64),)),
        "stft loss": (Losses(), (torch.randn(2, 1, 76_800), torch.randn(2, 1, 76_800))),
        "batch norm": (
            nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            (torch.randn(8, 3, 32, 32),),
        ),
    }
    if large:
        made["vit 113.5 M"] = (VisionTransformer.paper(), (torch.randn(8, 3, 32, 32),))
    return made


def set_tf32(on: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    failures: list[str] = []
    records: list[dict[str, Any]] = []
    for name, (model, inputs) in models(options.large).items():
        for setting, tf32, allowed in (
            ("off", False, False),
            ("on", True, False),
            ("allowed", True, True),
        ):
            set_tf32(tf32)
            torch.cuda.reset_peak_memory_stats()
            begin = time.perf_counter()
            report = check_model(model, inputs, device="cuda", allow_tf32=allowed)
            took = time.perf_counter() - begin
            kinds = sorted({finding.kind for finding in report.findings})
            worst = max((layer.relative_error for layer in report.layers.values()), default=0.0)
            records.append(
                {
                    "model": name,
                    "tf32": setting,
                    "findings": len(report.findings),
                    "kinds": kinds,
                    "worst": worst,
                    "seconds": took,
                    "gpu_peak_bytes": torch.cuda.max_memory_allocated(),
                }
            )
            print(
                f"{name}, TF32 {setting}: {len(report.findings)} findings {kinds}, worst "
                f"relative error {worst:.1e}, {took:.1f} s",
                flush=True,
            )
            strange = [f for f in report.findings if f.kind != "tf32"]
            elsewhere = [f for f in report.findings if not any(p in f.op for p in PRODUCTS)]
            if (not tf32 or allowed) and report.findings:
                failures.append(f"{name}, TF32 {setting}: findings where none belong\n{report}")
            if tf32 and not allowed and (strange or elsewhere):
                failures.append(f"{name}, TF32 on: not explained by TF32\n{report}")
    if not any(r["findings"] for r in records if r["tf32"] == "on"):
        failures.append("TF32 on: nothing was flagged on any model")
    set_tf32(False)
    table = check_stft(device="cuda")
    for length, (out, grad, fine) in table.items():
        print(
            f"torch.stft, {length} samples: output {out.relative:.1e}, gradient cosine "
            f"{grad.cosine:.6f}, {'ok' if fine else 'WRONG'}"
        )
        if not fine:
            failures.append(f"torch.stft is wrong at {length}")
    if options.json:
        options.json.write_text(json.dumps(records, indent=1))
    for text in failures:
        print("FAILED:", text)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
