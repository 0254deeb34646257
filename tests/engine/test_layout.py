"""The ctypes mirror agrees with the C header, field by field, as a C compiler lays it out."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from mccl.engine import structs
from mccl.plans.plan import Collective, DepKind, StepKind

HEADER = Path(__file__).resolve().parents[2] / "native" / "include"
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler on PATH")

STRUCTS: dict[str, type[ctypes.Structure]] = {
    "mccl_step": structs.CStep,
    "mccl_dep": structs.CDep,
    "mccl_scratch": structs.CScratch,
    "mccl_comm_config": structs.CCommConfig,
    "mccl_ticket": structs.Ticket,
    "mccl_piece": structs.CPiece,
    "mccl_op_desc": structs.COpDesc,
    "mccl_p2p_desc": structs.CP2PDesc,
    "mccl_op_info": structs.COpInfo,
    "mccl_error": structs.CError,
    "mccl_stats": structs.CStats,
    "mccl_record": structs.CRecord,
    "mccl_peer_state": structs.CPeerState,
}


def evaluate(expressions: list[str], directory: Path) -> list[int]:
    """What a C program that includes mccl.h prints for integer expressions."""
    assert COMPILER is not None
    prints = "\n".join(f'  printf("%lld\\n", (long long)({text}));' for text in expressions)
    source = directory / "probe.c"
    source.write_text(
        f'#include <stdio.h>\n#include "mccl.h"\nint main(void) {{\n{prints}\n  return 0;\n}}\n'
    )
    program = directory / "probe"
    command = [COMPILER, f"-I{HEADER}", str(source), "-o", str(program)]
    subprocess.run(command, check=True, timeout=60)
    done = subprocess.run([str(program)], check=True, timeout=60, capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]


@needs_compiler
def test_structs_have_the_layout_of_the_header(tmp_path: Path) -> None:
    asked: list[str] = []
    expected: list[int] = []
    for name, mirror in STRUCTS.items():
        asked.append(f"sizeof({name})")
        expected.append(ctypes.sizeof(mirror))
        for field, kind in ((entry[0], entry[1]) for entry in mirror._fields_):
            member = field.removesuffix("_")
            asked += [f"offsetof({name}, {member})", f"sizeof((({name}*)0)->{member})"]
            expected += [getattr(mirror, field).offset, ctypes.sizeof(kind)]
    found = evaluate(asked, tmp_path)
    wrong = [
        f"{text}: C {c}, Python {p}"
        for text, c, p in zip(asked, found, expected, strict=True)
        if c != p
    ]
    assert not wrong


@needs_compiler
def test_enumerations_have_the_values_of_the_header(tmp_path: Path) -> None:
    pairs = [(f"MCCL_{item.name}", item) for item in (*structs.DType, *structs.RedOp)]
    pairs += [(f"MCCL_{item.name}", item) for item in (*structs.Status, *structs.Channel)]
    pairs += [(f"MCCL_FAIL_{item.name}", item) for item in structs.Failure]
    pairs += [(f"MCCL_{item.name}", item) for item in Collective]
    pairs += [(f"MCCL_STEP_{item.name}", item) for item in StepKind]
    pairs += [(f"MCCL_DEP_{item.name}", item) for item in DepKind]
    pairs += [("MCCL_ABI_VERSION", structs.ABI_VERSION), ("MCCL_NO_REDOP", structs.NO_REDOP)]
    found = evaluate([name for name, _ in pairs], tmp_path)
    assert dict(zip([name for name, _ in pairs], found, strict=True)) == {
        name: int(value) for name, value in pairs
    }
