"""Copies keep their layout; tapes give back what was drawn."""

from __future__ import annotations

import math

import pytest
import torch
from torch.nn import functional

from mccl.numerics.tape import Tape, TapeMismatchError
from mccl.numerics.tensors import cast, mirror

CPU = torch.device("cpu")

LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 2),
    "channels last": lambda t: t[:, :, :, None].contiguous(memory_format=torch.channels_last),
    "slice": lambda t: t[1:, ::2, 3:],
    "expanded": lambda t: t[:, :1].expand(-1, 5, -1),
    "overlapping": lambda t: t.flatten().unfold(0, 7, 3),
    "one element": lambda t: t[1, 1, 1],
    "empty": lambda t: t[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_mirror_keeps_layout_and_values(layout: str) -> None:
    view = LAYOUTS[layout](torch.randn(4, 6, 8))
    copy = mirror(view, torch.float64, CPU)
    assert copy.dtype == torch.float64
    assert torch.equal(copy, view.double())
    assert copy.stride() == view.stride()
    assert not copy.numel() or copy.data_ptr() != view.data_ptr()


def test_mirror_keeps_alignment() -> None:
    view = torch.randn(500)[70:400:3]
    assert mirror(view, torch.float32, CPU).storage_offset() == 70 % 64


def test_mirror_resolves_a_lazy_conjugate() -> None:
    x = torch.randn(3, 4, dtype=torch.complex64)
    assert torch.equal(mirror(x.conj(), torch.complex128, CPU), x.conj().to(torch.complex128))


def test_cast_keeps_finite_values_finite() -> None:
    """A mask of finfo(float64).min must not become -inf, nor -inf become finite."""
    x = torch.tensor([torch.finfo(torch.float64).min, -math.inf, 1.0], dtype=torch.float64)
    least = torch.finfo(torch.float32).min
    assert cast(x, torch.float32).tolist() == [least, -math.inf, 1.0]


def test_tape_gives_the_same_masks_in_another_dtype() -> None:
    tape = Tape()
    x = torch.randn(50, dtype=torch.float64)
    with tape.record():
        first = functional.dropout(x, 0.4) + torch.rand_like(x)
        noise = torch.empty(7, dtype=torch.float64).normal_()
    with tape.replay():
        second = functional.dropout(x.float(), 0.4) + torch.rand_like(x.float())
        again = torch.empty(7).normal_()
    torch.testing.assert_close(second, first.float())
    assert torch.equal(again, noise.float())


def test_tape_feeds_a_fused_dropout_kernel() -> None:
    """What a GPU calls for the same layer: one operator that returns output and mask."""
    tape = Tape()
    x = torch.randn(200)
    with tape.record():
        first = functional.dropout(x, 0.3)
    with tape.replay():
        second, mask = torch.ops.aten.native_dropout(x, 0.3, True)
    torch.testing.assert_close(second, first)
    assert torch.equal(mask, first != 0)


def test_tape_refuses_other_draws() -> None:
    tape = Tape()
    with tape.record():
        torch.empty(5).uniform_()
    with tape.replay(), pytest.raises(TapeMismatchError, match="reference drew"):
        torch.empty(6).uniform_()
    with tape.replay():
        torch.empty(5).uniform_()
        with pytest.raises(TapeMismatchError, match="more often"):
            torch.empty(5).uniform_()


def test_attention_without_dropout_runs_and_is_never_read_back() -> None:
    q = torch.randn(2, 4, 16, 8)
    tape = Tape()
    with tape.record():
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
    with tape.replay():
        again = torch.nn.functional.scaled_dot_product_attention(q, q, 2 * q)
    torch.testing.assert_close(
        again, torch.nn.functional.scaled_dot_product_attention(q, q, 2 * q), rtol=0, atol=0
    )


def test_attention_with_dropout_uses_the_recorded_mask() -> None:
    q = torch.randn(2, 4, 16, 8)
    tape = Tape()
    with tape.record():
        first = torch.nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    with tape.replay():
        again = torch.nn.functional.scaled_dot_product_attention(q, q, 2 * q, dropout_p=0.5)
    torch.testing.assert_close(again, 2 * first)


def test_what_is_random_in_training_only_is_not_read_back_outside_it() -> None:
    x = -torch.rand(64) - 0.5
    tape = Tape()
    with tape.record():
        torch.nn.functional.rrelu(x, training=False)
    with tape.replay():
        again = torch.nn.functional.rrelu(3 * x, training=False)
    torch.testing.assert_close(again, torch.nn.functional.rrelu(3 * x, training=False))
