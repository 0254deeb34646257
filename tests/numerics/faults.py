"""Wrong kernels, each with a model that contains one layer to blame.

A fault names the layer by the place where the faulty operator is called; every other layer of
the model is right, and some use the same inputs, outputs and shapes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .simulated import FaultyDevice, Kernel

aten = torch.ops.aten
EDGE = 2**16


@dataclass(frozen=True)
class Fault:
    """name: what is wrong. layer: who is to blame. phase: where it shows."""

    name: str
    layer: str
    phase: str
    model: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Any, ...]]
    kernels: Callable[[], dict[Any, Kernel]] = dict
    functions: Callable[[], dict[Any, Kernel]] = dict
    kinds: tuple[str, ...] = ()

    def device(self) -> FaultyDevice:
        return FaultyDevice(self.kernels(), self.functions())


# ---- models: named layers around the one that will be wrong ----


class Apply(nn.Module):
    """A layer that is one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def layers(**named: nn.Module) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        return nn.Sequential(OrderedDict(named))

    return make


def randn(*shape: int) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.randn(*shape, generator=torch.Generator().manual_seed(5)),)


class PaddedAudio(nn.Module):
    """A convolution whose reflection is a functional call inside the module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 2, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(functional.pad(x, (2, 2), mode="reflect"))


class Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stft(x, 512, 128, window=self.window, return_complex=True)


class ComplexGain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x)[..., :8] * self.gain


class Squared(torch.autograd.Function):
    """The custom function whose device twin is wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.addcmul(torch.zeros_like(x), grad, x, value=2)


class Shared(nn.Module):
    """One layer used twice, from two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.twin = self.first
        self.act = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.twin(self.act(self.first(x)))


# ---- wrong kernels ----


def reflect_overflow(true: Any, grad: Tensor, x: Tensor, padding: Any) -> Tensor:
    """The fault of paper §6.2: wrong from 2^16 samples on, but for one mono signal at multiples."""
    out = true(grad, x, padding)
    length = x.shape[-1]
    rows = x.numel() // length
    if length >= EDGE and (rows > 1 or length % EDGE):
        return out.flatten().roll(EDGE // 2 + 17).view_as(out)
    return out


class Stale:
    """From the second time on, returns what the buffer held before: the previous result."""

    def __init__(self) -> None:
        self.held: dict[Any, Tensor] = {}

    def __call__(self, true: Any, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = true(*args, **kwargs)
        old = self.held.get(out.shape)
        self.held[out.shape] = out.clone()
        return out if old is None else old


def ignores_strides(true: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Reads a non-contiguous input as if it were contiguous."""
    if not x.is_contiguous():
        x = x.as_strided(x.shape, torch.empty(x.shape).stride(), x.storage_offset())
    return true(x, *args, **kwargs)


def half_accumulation(true: Any, bias: Tensor, a: Tensor, b: Tensor, **kwargs: Any) -> Tensor:
    """Sums products in float16, in steps of 16."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
    for i in range(0, a.shape[1], 16):
        total = total + (a[:, i : i + 16] @ b[i : i + 16]).half()
    return bias + total.float()


def drops_last_channel(true: Any, *args: Any, **kwargs: Any) -> Tensor:
    out = true(*args, **kwargs).clone()
    out[:, -1] = 0
    return out


def conv_weight_gradient(true: Any, *args: Any, **kwargs: Any) -> Any:
    gx, gw, gb = true(*args, **kwargs)
    return gx, (gw.flip(-1) if gw is not None else None), gb


def conv_input_gradient_off_by_one(true: Any, *args: Any, **kwargs: Any) -> Any:
    gx, gw, gb = true(*args, **kwargs)
    return (gx.roll(1, -1) if gx is not None else None), gw, gb


def conjugated(true: Any, *args: Any, **kwargs: Any) -> Tensor:
    return true(*args, **kwargs).conj().resolve_conj()


def swapped_parts(true: Any, *args: Any, **kwargs: Any) -> Tensor:
    out = true(*args, **kwargs)
    return torch.complex(out.imag.contiguous(), out.real.contiguous())


class Nondeterministic:
    """A sum whose order changes from call to call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, true: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        self.calls += 1
        cut = 100 * self.calls
        return x[..., :cut].sum(-1) + x[..., cut:].sum(-1)


def pads_one_too_early(true: Any, x: Tensor, padding: Any, *args: Any) -> Tensor:
    return true(x, padding, *args).roll(1, -1)


def only_first_of_batch(true: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Right for batch 1, repeats the first item otherwise."""
    out = true(x, *args, **kwargs)
    return out[:1].expand_as(out).clone() if out.shape[0] > 1 else out


def scaled_gradient(true: Any, grad: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return true(grad, *args, **kwargs) * 1.01


def norm_weight_gradient_of_first_row(true: Any, *args: Any) -> Any:
    gx, gw, gb = true(*args)
    return gx, (gw * 0.5 if gw is not None else None), gb


def batch_norm_wrong_running_variance(
    true: Any, x: Tensor, w: Any, b: Any, mean: Any, var: Any, *args: Any
) -> Any:
    """Output right, running variance kept biased (a buffer written in place)."""
    out = true(x, w, b, mean, var, *args)
    if var is not None and args[0]:
        var.mul_(1.05)
    return out


def nan_at_zero(true: Any, grad: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    out = true(grad, *args, **kwargs).clone()
    out.view(-1)[0] = float("nan")
    return out


def wrong_shape(true: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return true(x, *args, **kwargs)[..., :-1].contiguous()


def refuses(true: Any, *args: Any, **kwargs: Any) -> Tensor:
    raise NotImplementedError("The operator 'aten::angle' is not implemented for this device")


def embedding_gradient_without_repeats(
    true: Any, grad: Tensor, index: Tensor, n: int, *args: Any
) -> Tensor:
    """Writes where it should add: a repeated index keeps its last gradient only."""
    out = torch.zeros(n, grad.shape[-1])
    out[index.reshape(-1)] = grad.reshape(-1, grad.shape[-1])
    return out


def wrong_indices(true: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return (true(x, *args, **kwargs) + 1) % x.shape[-1]


def one_wrong_element(true: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """One value of a great many."""
    out = true(x, *args, **kwargs).clone()
    out.view(-1)[out.numel() // 2] += 0.5
    return out


def flushes_small_values(true: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    out = true(x, *args, **kwargs)
    return torch.where(out.abs() < 2e-2, torch.zeros_like(out), out)


class OtherMask(torch.autograd.Function):
    """Dropout whose backward pass draws its mask anew."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        ctx.p = p
        return x * (torch.rand(x.shape) >= p) / (1 - p)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * (torch.rand(grad.shape) >= ctx.p) / (1 - ctx.p), None


def dropout_other_mask(
    true: Any, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    return OtherMask.apply(x, p) if training else x


def dropout_unscaled(
    true: Any, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    out: Tensor = true(x, p, training, False)
    return out * (1 - p) if training else out


def second_half_lost(true: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """An index kept in 16 bits: whatever lies behind 2^16 elements is taken from the start."""
    flat = x.reshape(-1)
    wrapped = flat[torch.arange(flat.numel()) % EDGE]
    return true(wrapped.view(x.shape), *args, **kwargs)


def grads_detached(true: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    out: Tensor = true(x.detach(), *args, **kwargs)
    return out


def attention_without_last_key(true: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    out = true(x, *args, **kwargs).clone()
    out[..., -1] = 0
    return out


def attention_with_doubled_query(true: Any, query: Tensor, *args: Any, **kwargs: Any) -> Any:
    return true(2 * query, *args, **kwargs)


def pool_gradient_to_first(true: Any, grad: Tensor, x: Tensor, kernel: Any, *args: Any) -> Tensor:
    return true(grad, x, kernel, *args).roll(1, -1)


class SwappedProduct(torch.autograd.Function):
    """A complex product whose gradient has its parts swapped."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return torch.mul(a, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b = ctx.saved_tensors
        swapped = torch.complex(grad.imag, grad.real)
        return swapped * b.conj(), (swapped * a.conj()).sum(0)


def product_with_swapped_gradient(true: Any, a: Tensor, b: Any) -> Tensor:
    return SwappedProduct.apply(a, b) if isinstance(b, Tensor) and b.is_complex() else true(a, b)


def only_transposed(kernel: Kernel) -> Kernel:
    """`kernel` where a convolution is a transposed one."""

    def run(true: Any, *args: Any, **kwargs: Any) -> Any:
        return kernel(true, *args, **kwargs) if args[6] else true(*args, **kwargs)

    return run


def scaled_addcmul(true: Any, *args: Any, value: float = 1) -> Tensor:
    out: Tensor = true(*args, value=value)
    return out * 1.5


def write_slice(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:, 1::2] = x[:, ::2]
    return out


def copies_shifted(true: Any, target: Tensor, source: Tensor, *args: Any) -> Tensor:
    """Ignores the stride of its target: a strided copy arrives rotated."""
    strided = target.dim() > 1 and not target.is_contiguous()
    return true(target, source.roll(1, -1) if strided else source, *args)


# ---- the list ----

_audio = randn(2, 1, EDGE + 1)
_images = randn(2, 4, 12, 12)
_rows = randn(6, 8)

# fmt: off
FAULTS: tuple[Fault, ...] = (
    Fault("reflection backward beyond 2^16, functional", "pad", "backward",
          layers(scale=Apply(lambda x: 2 * x), pad=PaddedAudio(), act=nn.Tanh()), _audio,
          lambda: {aten.reflection_pad1d_backward.default: reflect_overflow}),
    Fault("reflection backward beyond 2^16, inside stft", "spectrum", "backward",
          layers(flat=nn.Flatten(1), spectrum=Spectrum(), power=Apply(torch.abs)), _audio,
          lambda: {aten.reflection_pad1d_backward.default: reflect_overflow}),
    Fault("reflection backward beyond 2^16, module", "reflect", "backward",
          layers(reflect=nn.ReflectionPad1d(3), act=nn.Sigmoid()), _audio,
          lambda: {aten.reflection_pad1d_backward.default: reflect_overflow}),
    Fault("16-bit index in the forward pass", "tanh", "forward",
          layers(scale=Apply(lambda x: 2 * x), tanh=nn.Tanh()), _audio,
          lambda: {aten.tanh.default: second_half_lost}),
    Fault("stale buffer", "gelu2", "forward",
          layers(gelu1=nn.GELU(), scale=Apply(lambda x: 3 * x), gelu2=nn.GELU()), _rows,
          lambda: {aten.gelu.default: Stale()}),
    Fault("wrong stride for non-contiguous input", "exp", "forward",
          layers(turn=Apply(lambda x: x.transpose(1, 2)), exp=Apply(torch.exp)), randn(2, 5, 7),
          lambda: {aten.exp.default: ignores_strides}),
    Fault("half-precision accumulation", "linear", "forward",
          layers(act=nn.Tanh(), linear=nn.Linear(1024, 16)), randn(4, 1024),
          lambda: {aten.addmm.default: half_accumulation}),
    Fault("dropped channel", "conv2", "forward",
          layers(conv1=nn.Conv2d(4, 8, 3), conv2=nn.ConvTranspose2d(8, 5, 3)), _images,
          lambda: {aten.convolution.default: only_transposed(drops_last_channel)}),
    Fault("weight gradient of a convolution flipped", "conv", "backward",
          layers(act=nn.Tanh(), conv=nn.Conv2d(4, 6, 3)), _images,
          lambda: {aten.convolution_backward.default: conv_weight_gradient}),
    Fault("input gradient of a convolution off by one", "conv", "backward",
          layers(act=nn.Tanh(), conv=nn.Conv2d(4, 6, 3, padding=1)), _images,
          lambda: {aten.convolution_backward.default: conv_input_gradient_off_by_one}),
    Fault("real and imaginary gradient swapped", "gain", "backward",
          layers(act=nn.Tanh(), gain=ComplexGain(), power=Apply(torch.abs)), randn(4, 32),
          functions=lambda: {torch.Tensor.mul: product_with_swapped_gradient}),
    Fault("FFT conjugated", "gain", "forward",
          layers(act=nn.Tanh(), gain=ComplexGain(), power=Apply(torch.abs)), randn(4, 32),
          lambda: {aten._fft_r2c.default: conjugated}),
    Fault("FFT with parts swapped, inside stft", "spectrum", "forward",
          layers(spectrum=Spectrum(), power=Apply(torch.abs)), randn(2, 2048),
          lambda: {aten._fft_r2c.default: swapped_parts}),
    Fault("nondeterministic reduction", "total", "forward",
          layers(act=nn.Softplus(), total=Apply(lambda x: x.sum(-1))), randn(4, 4097),
          lambda: {aten.sum.dim_IntList: Nondeterministic()}, kinds=("nondeterministic",)),
    Fault("padding off by one", "pad", "forward",
          layers(act=nn.Tanh(), pad=nn.ConstantPad1d((3, 2), 0.0)), randn(2, 3, 40),
          lambda: {aten.constant_pad_nd.default: pads_one_too_early}),
    Fault("wrong only for batch > 1", "pool", "forward",
          layers(conv=nn.Conv2d(4, 4, 3), pool=nn.AdaptiveAvgPool2d(3)), _images,
          lambda: {aten._adaptive_avg_pool2d.default: only_first_of_batch}),
    Fault("backward 1% too large", "act", "backward",
          layers(linear=nn.Linear(8, 8), act=nn.GELU()), _rows,
          lambda: {aten.gelu_backward.default: scaled_gradient}),
    Fault("norm weight gradient halved", "norm", "backward",
          layers(linear=nn.Linear(8, 8), norm=nn.LayerNorm(8)), _rows,
          lambda: {aten.native_layer_norm_backward.default: norm_weight_gradient_of_first_row}),
    Fault("group norm weight gradient halved", "norm", "backward",
          layers(conv=nn.Conv2d(4, 8, 1), norm=nn.GroupNorm(2, 8)), _images,
          lambda: {aten.native_group_norm_backward.default: norm_weight_gradient_of_first_row}),
    Fault("running variance wrong", "norm", "forward",
          layers(conv=nn.Conv2d(4, 8, 1), norm=nn.BatchNorm2d(8)), _images,
          lambda: {aten.native_batch_norm.default: batch_norm_wrong_running_variance}),
    Fault("NaN in one gradient", "act", "backward",
          layers(linear=nn.Linear(8, 8), act=nn.Sigmoid()), _rows,
          lambda: {aten.sigmoid_backward.default: nan_at_zero}, kinds=("nonfinite",)),
    Fault("wrong output shape", "soft", "forward",
          layers(linear=nn.Linear(8, 8), soft=nn.Softmax(-1)), _rows,
          lambda: {aten._softmax.default: wrong_shape}, kinds=("shape",)),
    Fault("operator missing on the device", "phase", "forward",
          layers(gain=ComplexGain(), phase=Apply(torch.angle)), randn(4, 32),
          lambda: {aten.angle.default: refuses}, kinds=("error",)),
    Fault("embedding gradient loses repeats", "embed", "backward",
          layers(embed=nn.Embedding(5, 8), linear=nn.Linear(8, 3)),
          lambda: (torch.tensor([[0, 1, 1, 4], [2, 2, 2, 0]]),),
          lambda: {aten.embedding_dense_backward.default: embedding_gradient_without_repeats}),
    Fault("argmax off by one", "best", "forward",
          layers(linear=nn.Linear(8, 8), best=Apply(lambda x: x.argmax(-1))), _rows,
          lambda: {aten.argmax.default: wrong_indices}, kinds=("integer",)),
    Fault("one wrong element of a million", "act", "forward",
          layers(scale=Apply(lambda x: 2 * x), act=nn.Tanh()), randn(1024, 1024),
          lambda: {aten.tanh.default: one_wrong_element}, kinds=("element", "precision")),
    Fault("small values flushed to zero", "act", "forward",
          layers(linear=nn.Linear(64, 64), act=nn.Tanh()), randn(16, 64),
          lambda: {aten.tanh.default: flushes_small_values}),
    Fault("dropout backward with another mask", "drop", "backward",
          layers(linear=nn.Linear(8, 8), drop=nn.Dropout(0.4)), randn(32, 8),
          functions=lambda: {functional.dropout: dropout_other_mask}),
    Fault("dropout does not scale", "drop", "forward",
          layers(linear=nn.Linear(8, 8), drop=nn.Dropout(0.4)), randn(32, 8),
          functions=lambda: {functional.dropout: dropout_unscaled}),
    Fault("gradient link lost", "act", "backward",
          layers(linear=nn.Linear(8, 8), act=nn.Softplus()), _rows,
          functions=lambda: {functional.softplus: grads_detached}, kinds=("missing",)),
    Fault("last key ignored in attention", "attention", "forward",
          layers(linear=nn.Linear(8, 8), attention=Apply(lambda x: torch.softmax(
              x @ x.transpose(-1, -2), -1) @ x)), randn(2, 6, 8),
          lambda: {aten._softmax.default: attention_without_last_key}),
    Fault("fused attention scales its query twice", "attention", "forward",
          layers(linear=nn.Linear(8, 8), attention=Apply(
              lambda x: functional.scaled_dot_product_attention(x, x, x))), randn(2, 2, 6, 8),
          lambda: {aten._scaled_dot_product_flash_attention_for_cpu.default:
                   attention_with_doubled_query}),
    Fault("pooling gradient to the neighbour", "pool", "backward",
          layers(conv=nn.Conv2d(4, 4, 3), pool=nn.MaxPool2d(2)), _images,
          lambda: {aten.max_pool2d_with_indices_backward.default: pool_gradient_to_first}),
    Fault("custom autograd function, wrong backward kernel", "square", "backward",
          layers(linear=nn.Linear(8, 8), square=Apply(Squared.apply)), _rows,
          lambda: {aten.addcmul.default: scaled_addcmul}),
    Fault("shared layer", "first", "backward",
          Shared, _rows, lambda: {aten.mm.default: lambda true, a, b: true(a, b) * 1.02}),
    Fault("in-place operator", "relu", "forward",
          layers(linear=nn.Linear(8, 8), relu=nn.ReLU(inplace=True)), _rows,
          lambda: {aten.relu_.default: lambda true, x: x.clamp_(min=0.05)}),
    Fault("copy into a slice of a strided tensor", "write", "forward",
          layers(linear=nn.Linear(8, 8), write=Apply(lambda x: write_slice(x))), _rows,
          lambda: {aten.copy_.default: copies_shifted}),
)
# fmt: on
