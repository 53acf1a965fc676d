"""Convolutions, norms and pools that give the same numbers as torch's, faster at inference.

A map keeps its logical order (rows, channels, height, width), so that any layer can follow any other; only the order in memory
changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.compute.devices import kernels_run, matrix_products

_LARGEST_KERNEL = 4


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """A size for both directions, as torch lets people write it."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def is_plain_pool(layer: nn.Module) -> bool:
    """Whether ``layer`` is a max-pool with a small kernel and nothing out of the ordinary: no padding, dilation or ceiling."""
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
        return False
    return (
        max(pair(layer.kernel_size)) <= _LARGEST_KERNEL
        and pair(layer.padding) == (0, 0)
        and pair(layer.dilation) == (1, 1)
        and min(pair(layer.stride)) >= 1
    )


class SlicedMaxPool(nn.Module):
    """The max-pool ``layer`` for channels-last maps, by rows first and then by columns.

    Equal to ``layer`` to the bit, NaN included: a maximum rounds nothing and does not depend on the order, and
    ``torch.maximum`` propagates NaN as torch's pooling does. Torch's pooling on a CPU also finds where each maximum was, which
    only training needs.
    """

    def __init__(self, layer: nn.MaxPool2d) -> None:
        super().__init__()
        self.kernel, self.stride = pair(layer.kernel_size), pair(layer.stride)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, height, width) to the same with fewer positions, in channels-last memory."""
        inner = x.permute(0, 2, 3, 1)
        for axis, kernel, stride in zip((1, 2), self.kernel, self.stride, strict=True):
            span = stride * ((inner.shape[axis] - kernel) // stride) + 1
            slices = [inner[(slice(None),) * axis + (slice(first, first + span, stride),)] for first in range(kernel)]
            inner = reduce(torch.maximum, slices)
        return inner.permute(0, 3, 1, 2)


_LARGEST_WEIGHT_BYTES = 64 * 2**20
# Beyond this many multiplications for each one of the convolution no matrix unit makes up for it.
_MOST_WASTE = 24
# Unit vectors convolved at once when a weight is built.
_UNITS = 256


def can_be_dense(layer: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether ``layer`` is a plain convolution of maps of ``shape`` whose dense weights are small enough to be worth trying."""
    if type(layer) is not nn.Conv2d or len(shape) != 3 or layer.groups != 1 or layer.padding_mode != "zeros":
        return False
    if isinstance(layer.padding, str) or layer.weight.dtype != torch.float32:
        return False
    bands, (channels, height, width) = _bands(layer, shape[1]), output_shape(layer, shape)
    if any(band.lines_in < 1 for band in bands):  # more padding than kernel: lines that see nothing
        return False
    line = shape[0] * shape[2] * channels * width
    entries = sum(band.lines_in * line for band in bands)
    products = sum(band.count * band.lines_in * line for band in bands)
    return 4 * entries <= _LARGEST_WEIGHT_BYTES and products <= _MOST_WASTE * height * width * layer.weight.numel()


@dataclass(frozen=True)
class _Band:
    """``count`` output lines from ``line`` on, that see ``lines_in`` lines of the input each: the first from ``first`` on."""

    line: int
    count: int
    first: int
    lines_in: int


class DenseConvolution(nn.Module):
    """``layer`` on maps of ``shape`` as matrix products; inputs and outputs lie in channels-last memory.

    One line of the output needs only the few lines of the input that the kernel covers. So each output line is one product with
    a small weight, and the lines that see the kernel's full height share that weight and are multiplied together. Against one
    product for the whole map this saves two thirds of the arithmetic on the small MNIST network.

    ``with_bias`` False leaves the bias to the next layer. The products of the convolution are summed, and products with zero
    besides: equal up to the rounding of sums, and NaN stays NaN (it also reaches other positions of its line, so the row votes
    for nobody). ``tf32`` decides whether TF32 is used; torch's own setting is left as it was.
    """

    def __init__(self, layer: nn.Conv2d, shape: tuple[int, ...], *, tf32: bool, with_bias: bool = True) -> None:
        super().__init__()
        self.shape, self.bands = output_shape(layer, shape), _bands(layer, shape[1])
        self.line_in, self.step, self.tf32 = shape[0] * shape[2], pair(layer.stride)[0], tf32
        self.weights = nn.ParameterList(
            [nn.Parameter(_band_weight(layer, shape, band), requires_grad=False) for band in self.bands]
        )
        self.bias = layer.bias if with_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, height, width) to the convolution's maps."""
        channels, height, width = self.shape
        lines = x.permute(0, 2, 3, 1).contiguous()
        out = torch.empty(len(x), height, width * channels, dtype=x.dtype, device=x.device)
        with matrix_products(self.tf32):
            for band, weight in zip(self.bands, self.weights, strict=True):
                seen = lines.as_strided(
                    (band.count, len(x), band.lines_in * self.line_in),
                    (self.step * self.line_in, lines.stride(0), 1),
                    lines.storage_offset() + band.first * self.line_in,
                )
                lines_out = out[:, band.line : band.line + band.count].transpose(0, 1)
                torch.bmm(seen, weight.expand(band.count, -1, -1), out=lines_out)
        maps = out.view(len(x), height, width, channels)
        if self.bias is not None:
            maps += self.bias
        return maps.permute(0, 3, 1, 2)


def _bands(layer: nn.Conv2d, lines: int) -> list[_Band]:
    """The output's lines; those that see the kernel's full height are one band."""
    padding = layer.padding if not isinstance(layer.padding, str) else (0, 0)
    kernel, step, pad, gap = (pair(value)[0] for value in (layer.kernel_size, layer.stride, padding, layer.dilation))
    reach = gap * (kernel - 1) + 1
    found: list[_Band] = []
    for line in range((lines + 2 * pad - reach) // step + 1):
        top = line * step - pad
        first, last = max(0, top), min(lines, top + reach)
        before = found[-1] if found else None
        # A cut kernel has a weight of its own, since it begins or ends at another of its lines.
        if before is not None and last - first == reach == before.lines_in:
            found[-1] = _Band(before.line, before.count + 1, before.first, reach)
        else:
            found.append(_Band(line, 1, first, last - first))
    return found


def _band_weight(layer: nn.Conv2d, shape: tuple[int, ...], band: _Band) -> Tensor:
    """(inputs of the band's first line, outputs), both channels innermost: the answers to the unit vectors."""
    channels, height, width = shape
    size, weight = band.lines_in * width * channels, layer.weight.detach().double()
    answers = []
    for start in range(0, size, _UNITS):
        count = min(_UNITS, size - start)
        units = torch.zeros(count, size, dtype=torch.float64, device=weight.device)
        units.diagonal(start).fill_(1)
        maps = torch.zeros(count, height, width, channels, dtype=torch.float64, device=weight.device)
        maps[:, band.first : band.first + band.lines_in] = units.view(count, band.lines_in, width, channels)
        answer = F.conv2d(maps.permute(0, 3, 1, 2), weight, None, layer.stride, layer.padding, layer.dilation)
        answers.append(answer[:, :, band.line].permute(0, 2, 1).flatten(1).float())
    return torch.cat(answers)


def output_shape(layer: nn.Conv2d, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Channels, height and width of the convolution's answer for maps of ``shape``."""
    padding = layer.padding if not isinstance(layer.padding, str) else (0, 0)
    height, width = (
        (size + 2 * pad - step * (kernel - 1) - 1) // stride + 1
        for size, pad, step, kernel, stride in zip(
            shape[1:], pair(padding), pair(layer.dilation), pair(layer.kernel_size), pair(layer.stride), strict=True
        )
    )
    return layer.out_channels, height, width


def norm_can_be_fused(norm: nn.Module, activation: nn.Module | None) -> bool:
    """Whether the two layers are a group normalisation with scale and shift, and exact GELU or ReLU, in this order."""
    if type(norm) is not nn.GroupNorm or not norm.affine:
        return False
    return type(activation) is nn.ReLU or (type(activation) is nn.GELU and activation.approximate == "none")


class NormActivation(nn.Module):
    """Group normalisation, then GELU or ReLU, on maps in channels-last memory; the answer is in channels-last memory too.

    The same function up to float rounding: variances are means of squared distances from the mean, as in torch. NaN stays NaN,
    in all of its group.
    """

    def __init__(self, norm: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        if not isinstance(norm, nn.GroupNorm):
            raise TypeError(f"a group normalisation is wanted, got {type(norm).__name__}")
        self.norm = norm
        self.gelu = type(activation) is nn.GELU

    def forward(self, x: Tensor) -> Tensor:
        _, channels, height, across = x.shape
        kernels, norm = _kernels(x.device), self.norm
        if kernels is not None and kernels.fits(height * across, channels // norm.num_groups):
            inner = x.permute(0, 2, 3, 1).contiguous()
            # Triton launches on the current GPU, which need not be the one of the tensors.
            with torch.cuda.device(x.device):
                maps: Tensor = kernels.normed(inner, norm.num_groups, norm.weight, norm.bias, norm.eps, gelu=self.gelu)
            return maps.permute(0, 3, 1, 2)
        normed: Tensor = self.norm(x)
        return F.gelu(normed) if self.gelu else normed.relu_()


def pool_can_be_fused(activation: nn.Module, pool: nn.Module) -> bool:
    """Whether the two layers are tanh or ReLU and a 2x2 max-pool with stride 1 or 2, in this order."""
    return (
        type(activation) in (nn.Tanh, nn.ReLU)
        and type(pool) is nn.MaxPool2d
        and is_plain_pool(pool)
        and pair(pool.kernel_size) == (2, 2)
        and pair(pool.stride) in ((1, 1), (2, 2))
    )


class ActivationPool(nn.Module):
    """tanh or ReLU, then a 2x2 max-pool, on maps in channels-last memory; the answer is in channels-last memory too.

    ``bias`` is added to each channel before, where the layer before left that to this one. Neither activation decreases, nor
    does adding a bias in floats, so the maximum is taken first: the same function up to the rounding of one activation. NaN
    stays NaN.
    """

    def __init__(self, activation: nn.Module, pool: nn.Module, bias: Tensor | None = None) -> None:
        super().__init__()
        if not isinstance(pool, nn.MaxPool2d):
            raise TypeError(f"a max-pool is wanted, got {type(pool).__name__}")
        self.tanh, self.stride = type(activation) is nn.Tanh, pair(pool.stride)[0]
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, height, width) to the same with fewer positions."""
        if (kernels := _kernels(x.device)) is not None:
            inner = x.permute(0, 2, 3, 1).contiguous()
            # Triton launches on the current GPU, which need not be the one of the tensors.
            with torch.cuda.device(x.device):
                maps: Tensor = kernels.pooled(inner, stride=self.stride, tanh=self.tanh, bias=self.bias)
            return maps.permute(0, 3, 1, 2)
        smaller = F.max_pool2d(x, 2, self.stride)
        if self.bias is not None:
            smaller = smaller + self.bias[:, None, None]
        return smaller.tanh_() if self.tanh else smaller.relu_()

    def of_sums(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """The answer for ``float32(inputs[i] + draws[j])`` of all i and j, j fastest; both float64 maps, channels last."""
        if (kernels := _kernels(inputs.device)) is not None:
            one, other = (part.permute(0, 2, 3, 1).contiguous() for part in (inputs, draws))
            with torch.cuda.device(inputs.device):
                maps: Tensor = kernels.pooled_sums(one, other, stride=self.stride, tanh=self.tanh)
            return maps.permute(0, 3, 1, 2)
        result: Tensor = self(sums(inputs, draws))
        return result


def sums(inputs: Tensor, draws: Tensor) -> Tensor:
    """``float32(inputs[i] + draws[j])`` for all i and j, j fastest, in the memory order of ``draws``."""
    if draws.ndim == 4:
        one, other = (part.permute(0, 2, 3, 1) for part in (inputs, draws))
        return (one[:, None] + other).to(torch.float32).flatten(0, 1).permute(0, 3, 1, 2)
    return (inputs[:, None] + draws).to(torch.float32).flatten(0, 1)


def _kernels(device: torch.device) -> ModuleType | None:
    if not kernels_run(device):
        return None
    from twinproof.certification import layer_kernels

    return layer_kernels
