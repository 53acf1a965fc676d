"""A convolution as dense matrix products: more arithmetic, but arithmetic that a GPU's matrix units do at full speed.

One line of the output needs only the few lines of the input that the kernel covers. So each output line is one product with a
small weight, and the lines that see the kernel's full height share that weight and are multiplied together. Against one
product for the whole map this saves two thirds of the arithmetic on the small MNIST network.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.certification.sliced_pool import pair
from twinproof.layers.precision import matrix_products

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
    bands, (channels, height, width) = _bands(layer, shape[1]), _output_shape(layer, shape)
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

    Maps of one channel lie in that order anyhow. ``with_bias`` False leaves the bias to the next layer.

    Guarantees
        The same products are summed as in the convolution, and products with zero besides: equal up to the rounding of sums,
        and NaN stays NaN (it also reaches other positions of its line, so the row votes for nobody). TF32 is used exactly
        where ``tf32`` says, and torch's own setting is left as it was.
    """

    def __init__(self, layer: nn.Conv2d, shape: tuple[int, ...], *, tf32: bool, with_bias: bool = True) -> None:
        super().__init__()
        self.shape = _output_shape(layer, shape)
        self.line_in = shape[0] * shape[2]
        self.step = pair(layer.stride)[0]
        self.tf32 = tf32
        self.bands = _bands(layer, shape[1])
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
    """The output's lines, those that see as many input lines at the same distance put together."""
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


def _output_shape(layer: nn.Conv2d, shape: tuple[int, ...]) -> tuple[int, int, int]:
    padding = layer.padding if not isinstance(layer.padding, str) else (0, 0)
    height, width = (
        (size + 2 * pad - step * (kernel - 1) - 1) // stride + 1
        for size, pad, step, kernel, stride in zip(
            shape[1:], pair(padding), pair(layer.dilation), pair(layer.kernel_size), pair(layer.stride), strict=True
        )
    )
    return layer.out_channels, height, width
