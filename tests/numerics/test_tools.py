"""What stands around the check: sweep, scripts, report, guard, command."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from mccl.cli import main
from mccl.errors import UsageError
from mccl.numerics import (
    check_model,
    guard,
    patch_reflect_pad,
    reflect_pad,
    sweep_model,
    write_script,
)
from mccl.numerics.compare import MISSHAPEN, THRESHOLDS, measure
from mccl.numerics.reflect_pad import ReflectPad, unpatch_reflect_pad

from .faults import FAULTS, PaddedAudio, Spectrum, reflect_overflow
from .simulated import FaultyDevice

aten = torch.ops.aten
REFLECT = {aten.reflection_pad1d_backward.default: reflect_overflow}


# ---- sweep ----


def test_sweep_finds_the_length_and_the_exception() -> None:
    model = nn.Sequential(nn.ReflectionPad1d(2), nn.Tanh())
    swept = sweep_model(
        model, (torch.randn(1, 1, 50),), device=FaultyDevice(REFLECT), layers=["0"],
        lengths=(2**15, 2**16 - 1, 2**16, 2**16 + 1, 2**17), batches=(1, 2), channels=(1, 2),
    )  # fmt: skip
    wrong = {point.shape for point in swept.failures}
    assert all(
        point.finding is not None and point.finding.phase == "backward" for point in swept.failures
    )
    right = {point.shape for point in swept.points} - wrong
    assert {shape[-1] for shape in wrong} == {2**16, 2**16 + 1, 2**17}
    assert {s for s in right if s[-1] >= 2**16} == {(1, 1, 2**16), (1, 1, 2**17)}
    assert "wrong from length 65536 on, but right at 1x1x65536, 1x1x131072" in str(swept)
    assert swept.exit_code == 1


def test_sweep_keeps_fixed_channels_and_says_what_it_leaves_out() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 5), nn.Flatten(), nn.Linear(3 * 46, 2))
    swept = sweep_model(model, (torch.randn(1, 2, 50),), lengths=(99, 100))
    conv = {point.shape for point in swept.points if point.name == "0"}
    assert conv == {(b, 2, n) for b in (1, 2, 4) for n in (99, 100)}
    assert swept.ok
    assert any(text.startswith("2 torch.nn.functional.linear") for text in swept.skipped)
    with pytest.raises(UsageError, match="nothing to sweep"):
        sweep_model(model, (torch.randn(1, 2, 50),), layers=["2"])


# ---- scripts ----


def _run_script(path: Path, device: FaultyDevice | None) -> int:
    """The script's exit code; inside the faulty device, on which it runs as on a real one."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    if device is None:
        return int(script.main())
    honest = script.run

    def run(place: str, exact: bool) -> Any:
        if exact:
            return honest("cpu", True)
        with device.active():
            return honest("cpu", False)

    script.run = run
    return int(script.main())


SCRIPTED = [
    fault
    for fault in FAULTS
    if not fault.kinds
    and "dropout" not in fault.name
    and fault.name != "stale buffer"
    and "custom" not in fault.name
]


@pytest.mark.parametrize("fault", SCRIPTED, ids=lambda fault: fault.name)
def test_script_reproduces_the_finding(
    fault: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["script", "cpu"])
    torch.manual_seed(1)
    device = fault.device()
    report = check_model(fault.model(), fault.inputs(), device=device, end_to_end=False)
    path = write_script(report.findings[0], tmp_path / "found.py", device=device)
    assert _run_script(path, fault.device()) == 1
    assert _run_script(path, None) == 0


def test_script_stands_alone(tmp_path: Path) -> None:
    device = FaultyDevice(REFLECT)
    report = check_model(PaddedAudio(), (torch.randn(2, 1, 2**16 + 1),), device=device)
    path = write_script(report.findings[0], tmp_path / "reflect.py", device=device)
    assert "mccl" not in path.read_text()
    assert "torch.nn.functional.pad(x[0], (2, 2), " in path.read_text()
    done = subprocess.run(
        [sys.executable, str(path), "cpu"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ok      gradient" in done.stdout


def test_values_that_matter_are_stored_with_the_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["script", "cpu"])
    table = {aten.exp.default: lambda true, x: true(x) * (1.5 if float(x.max()) > 50 else 1)}
    report = check_model(nn.Sequential(nn.ELU()), (torch.full((3, 4), -1.0),), device="cpu")
    assert report.ok

    class Exp(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.exp(x)

    report = check_model(Exp(), (torch.full((3, 4), 60.0),), device=FaultyDevice(table))
    path = write_script(report.findings[0], tmp_path / "big.py", device=FaultyDevice(table))
    assert (tmp_path / "big.pt").is_file()
    assert _run_script(path, FaultyDevice(table)) == 1


# ---- report ----


def test_report_as_table_and_json() -> None:
    device = FaultyDevice(REFLECT)
    model = nn.Sequential(nn.Tanh(), PaddedAudio())
    report = check_model(model, (torch.randn(2, 1, 2**16 + 9),), device=device)
    assert [(f.name, f.phase, f.tensor) for f in report.findings] == [("1", "backward", "input")]
    found = report.findings[0]
    assert found.cosine < 0.99
    assert found.relative_error > 1e-3
    text = str(report)
    assert text.splitlines()[0] == "Sequential on simulated (float32) against float64: 1 finding(s)"
    assert "end to end: DIFFERS" in text
    document = json.loads(report.to_json())
    assert document["findings"][0]["name"] == "1"
    assert document["ok"] is False
    assert {layer["name"] for layer in document["layers"]} == {"0", "1", "1.conv"}


def test_chosen_layers_only() -> None:
    model = nn.Sequential(nn.Tanh(), PaddedAudio())
    report = check_model(
        model, (torch.randn(2, 1, 2**16 + 9),), device=FaultyDevice(REFLECT), layers=["0"],
        end_to_end=False,
    )  # fmt: skip
    assert report.ok
    assert set(report.layers) == {"0"}


def test_fault_that_no_operator_shows_is_found_end_to_end() -> None:
    class Second(FaultyDevice):
        """tanh is wrong the second time it runs in one go."""

        def __init__(self) -> None:
            super().__init__({aten.tanh.default: self._tanh})
            self.runs = 0

        def _tanh(self, true: Any, x: torch.Tensor) -> torch.Tensor:
            self.runs += 1
            return true(x) * (1.1 if self.runs == 2 else 1.0)

        def active(self) -> Any:
            self.runs = 0
            return super().active()

    model = nn.Sequential(nn.Tanh(), nn.Linear(3, 3), nn.Tanh())
    report = check_model(model, (torch.randn(3, 3),), device=Second())
    assert [(f.name, f.op) for f in report.findings] == [("", "(end to end)")]


def test_model_that_returns_a_loss_is_compared_as_a_whole() -> None:
    table = {aten.tanh.default: lambda true, x: true(x) * 1.1}
    report = check_model(
        nn.Sequential(nn.Tanh(), Mean()), (torch.randn(3, 3),), device=FaultyDevice(table)
    )
    assert report.blamed() == ["0"]
    assert report.end_to_end is not None
    assert report.end_to_end.comparable
    assert not report.end_to_end.ok


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()


def test_tf32_is_named_and_can_be_allowed() -> None:
    def rounded(t: torch.Tensor) -> torch.Tensor:
        return ((t.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    def addmm(true: Any, bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return true(bias, rounded(a.contiguous()), rounded(b.contiguous()))

    def mm(true: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return true(rounded(a.contiguous()), rounded(b.contiguous()))

    table = {aten.addmm.default: addmm, aten.mm.default: mm}
    model, inputs = nn.Sequential(nn.Linear(256, 64), nn.GELU()), (torch.randn(32, 256),)
    report = check_model(model, inputs, device=FaultyDevice(table, tf32=True))
    assert {finding.kind for finding in report.findings} == {"tf32"}
    assert report.blamed() == ["0"]
    assert "allow_tf32" in str(report)
    assert check_model(model, inputs, device=FaultyDevice(table, tf32=True), allow_tf32=True).ok
    # The same rounding with the setting off is a fault like any other.
    silent = check_model(model, inputs, device=FaultyDevice(table, tf32=False))
    assert {finding.kind for finding in silent.findings} <= {"precision", "wrong", "element"}
    assert silent.blamed() == ["0"]


@pytest.mark.parametrize(
    ("statements", "enabled"),
    [
        ("b.cuda.matmul.allow_tf32 = b.cudnn.allow_tf32 = False", False),
        ("b.cuda.matmul.allow_tf32 = True; b.cudnn.allow_tf32 = False", True),
        ("b.cudnn.allow_tf32 = True", True),
        ("b.cudnn.allow_tf32 = False; b.fp32_precision = 'tf32'", True),
        ("b.cudnn.allow_tf32 = False; torch.set_float32_matmul_precision('high')", True),
        ("b.cudnn.conv.fp32_precision = b.cudnn.rnn.fp32_precision = 'ieee'", False),
    ],
)
def test_tf32_is_read_whichever_way_it_was_set(statements: str, enabled: bool) -> None:
    """In a process of its own: the settings are global and cannot all be put back."""
    code = (
        "import torch; b = torch.backends; from mccl.numerics.device import tf32_enabled\n"
        f"{statements}\nassert tf32_enabled() is {enabled}"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_model_and_global_state_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    check_model(model, (torch.randn(5, 4),))
    torch.set_rng_state(state)
    check_model(model, (torch.zeros(5, 4),))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())
    assert not nn.modules.module._global_forward_hooks
    assert "apply" not in torch.autograd.function._SingleLevelFunction.__dict__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((nn.Linear(2, 2), torch.ones(2)), "tuple"),
        ((nn.Linear(2, 2), (torch.ones(2),), "xyz"), "not one torch knows"),
        ((nn.Linear(2, 2), (torch.ones(2),), "mps"), "not available"),
        ((nn.Linear(2, 2), (torch.ones(3),)), "fails in float64"),
    ],
)
def test_wrong_calls_say_what_to_do(arguments: tuple[Any, ...], message: str) -> None:
    model, inputs, *device = arguments
    if device == ["mps"] and torch.backends.mps.is_available():
        pytest.skip("this machine has MPS, so asking for it is no error")
    with pytest.raises(UsageError, match=message):
        check_model(model, inputs, device=device[0] if device else "cpu")


def test_measures() -> None:
    limits = THRESHOLDS[torch.float32]
    one = torch.ones(1000)
    assert measure(one, one).kind(limits) is None
    assert measure(one, -one).kind(limits) == "wrong"
    assert measure(one * 1.0005, one).kind(limits) == "precision"
    assert measure(one[:5], one).kind(limits) == MISSHAPEN.kind(limits) == "shape"
    infinite = torch.tensor([1.0, float("inf"), float("nan")])
    assert measure(infinite, infinite).kind(limits) is None
    assert measure(infinite, torch.tensor([1.0, 2.0, 3.0])).kind(limits) == "nonfinite"
    assert measure(torch.zeros(3), torch.zeros(3)).kind(limits) is None
    assert measure(torch.tensor([0.0, 1e-9]), torch.zeros(2)).kind(limits) == "wrong"


# ---- the guard ----


@pytest.fixture
def _unpatched() -> Iterator[None]:
    yield
    unpatch_reflect_pad()


@pytest.mark.parametrize(
    ("version", "wrong"),
    [
        ("2.11.0", True),
        ("2.14.1", True),
        ("2.15.0", False),
        ("2.15.0.dev20260901", False),
        ("3.0", False),
        ("2.13.0+cpu", True),
        (None, False),
        ("unknown", False),
    ],
)
def test_affected_versions(version: str | None, wrong: bool) -> None:
    assert guard.affected(version) is wrong


def test_warns_once_on_a_mac_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_warned", False)
    monkeypatch.setattr(guard, "torch_version", lambda: "2.14.1")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        guard.warn_on_mac("linux")
        assert not caught
        guard.warn_on_mac("darwin")
        guard.warn_on_mac("darwin")
    assert [w.category for w in caught] == [guard.ReflectPadWarning]
    assert "patch_reflect_pad" in str(caught[0].message)


def test_warning_never_breaks_the_import(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``import torch`` loads mccl through an entry point; -W error must not break it."""
    monkeypatch.setattr(guard, "_warned", False)
    monkeypatch.setattr(guard, "torch_version", lambda: "2.14.1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guard.warn_on_mac("darwin")
    assert "patch_reflect_pad" in capsys.readouterr().err


def test_guard_needs_no_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from mccl.numerics import guard; guard.warn_on_mac('linux')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("shape", "padding"),
    [
        ((2, 3, 9), (4, 2)),
        ((3, 9), (0, 8)),
        ((2, 2, 6, 7), (3, 1, 2, 5)),
        ((1, 2, 4, 5, 6), (1, 2, 3, 1, 0, 3)),
    ],
)
def test_replacement_has_torch_gradients(shape: Any, padding: Any) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    expected = functional.pad(x, padding, mode="reflect")
    cotangent = torch.randn_like(expected)
    (want,) = torch.autograd.grad(expected, x, cotangent)
    out = ReflectPad.apply(x, padding, functional.pad)
    (got,) = torch.autograd.grad(out, x, cotangent)
    assert torch.equal(out, expected)
    torch.testing.assert_close(got, want)


@pytest.mark.usefixtures("_unpatched")
def test_patch_reaches_everything_that_pads() -> None:
    """On a device with the fault, the patch mends pad, ReflectionPad1d and torch.stft."""
    device = FaultyDevice(REFLECT)
    models = [PaddedAudio(), nn.ReflectionPad1d(3), nn.Sequential(nn.Flatten(1), Spectrum())]
    inputs = (torch.randn(2, 1, 2**16 + 1),)
    assert not any(check_model(m, inputs, device=device).ok for m in models)
    assert patch_reflect_pad(devices=("cpu",), force=True)
    assert patch_reflect_pad(devices=("cpu",), force=True)
    reports = [check_model(m, inputs, device=device) for m in models]
    assert all(report.ok for report in reports), "\n".join(map(str, reports))


@pytest.mark.usefixtures("_unpatched")
def test_patch_is_not_applied_where_torch_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    original = functional.pad
    monkeypatch.setattr(reflect_pad, "torch_version", lambda: "2.15.0")
    assert not patch_reflect_pad()
    assert functional.pad is original


# ---- the command ----

MODELS = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())

def with_inputs():
    return model(), (torch.ones(2, 8),)

def nothing():
    return 3
"""


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "some_models.py"
    path.write_text(MODELS)
    out = tmp_path / "report.json"
    words = ["check", f"{path}:model", "--input", "4x8", "--device", "cpu", "--json", str(out)]
    assert main(words) == 0
    assert "end to end: ok" in capsys.readouterr().out
    assert json.loads(out.read_text())["ok"] is True
    assert main(["check", f"{path}:with_inputs", "--device", "cpu", "--eval"]) == 0
    assert (
        main(
            [
                "check",
                f"{path}:model",
                "--input",
                "4x8",
                "--device",
                "cpu",
                "--layers",
                "1",
                "--sweep",
                "99,100",
            ]
        )
        == 0
    )
    assert "1 torch.nn.functional.relu: right at all 6 shapes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{}:nothing"], "expected a torch.nn.Module"),
        (["{}:model"], "--input"),
        (["{}:absent"], "has no function"),
        (["no_such_module:model"], "cannot be imported"),
        (["model"], "MODULE:FACTORY"),
        (["{}:model", "--input", "8xx"], "not understood"),
        (["{}:model", "--input", "4x8", "--sweep", "a"], "--sweep"),
    ],
)
def test_command_explains_mistakes(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "some_models.py"
    path.write_text(MODELS)
    assert main(["check", *[word.format(path) for word in words], "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err


def test_command_writes_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some_models.py"
    path.write_text(MODELS)
    faulty = FaultyDevice({aten.relu.default: lambda true, x: true(x) * 1.1})
    monkeypatch.setattr("mccl.cli.check._device", lambda asked: faulty)
    words = ["check", f"{path}:model", "--input", "4x8", "--repro", str(tmp_path / "scripts")]
    assert main(words) == 1
    assert [p.name for p in (tmp_path / "scripts").iterdir()] == ["1_forward.py"]
    assert "nn.functional.relu" in capsys.readouterr().out
