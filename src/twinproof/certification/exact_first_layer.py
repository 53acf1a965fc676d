"""A network's first linear layer in exact arithmetic, so that it can be evaluated once for inputs and once for noise.

W (x + n) = W x + W n holds for real numbers and not for floats: with float sums the network would see something that depends
on x and n apart, which is no function of x + n, and a certificate from it would be false. Here nothing is rounded. Inputs and
noise are integers (multiples of the grid h), and the weights, with the division by the number of levels in them, are rounded
once, before anything is certified, to integer multiples of a power of two q.

Guarantees
    ``of_inputs(x) + of_noise(n) == of_inputs(x + n)`` to the bit, for every stored input and every noise of the
    ``GridNoise`` that the layer was made for. Proof: in units of q each product is an integer, and all sums and partial
    sums that occur, in whatever order and with or without fused multiply-add, are integers of at most sum |w| * V + |b|, where
    V bounds |x| + |n| in grid steps. That is below 2^53 (checked in integers when the layer is made; numbers beyond V are
    refused), so float64 holds each of them exactly, and scaling by a power of two is exact too. Only sums of products are
    computed: windows are cut out and multiplied as one matrix, because a routine for convolutions may use transforms that
    round.
    The base classifier is the network with these weights. They are moved by at most ``2^-moved_bits`` of the largest one,
    never by more than 2^-13 of it, and usually by less than float32 itself resolves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.certification.grid_noise import GridNoise
from twinproof.certification.sliced_pool import pair
from twinproof.errors import ModelError

_EXACT = 2**53
# Weights coarser than this share of the largest one would make another network of it.
_COARSEST_BITS = 13
# Numbers of windows cut out at a time.
_MOST_NUMBERS = {"cpu": 2**19, "cuda": 2**26}


@dataclass(frozen=True)
class Windows:
    """How a convolution cuts its input; None in its place means a linear layer of the whole input."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def output(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Height and width of the answer for maps of ``shape``."""
        height, width = (
            (size + 2 * pad - step * (kernel - 1) - 1) // stride + 1
            for size, pad, step, kernel, stride in zip(
                shape[1:], self.padding, self.dilation, self.kernel, self.stride, strict=True
            )
        )
        return height, width

    def of(self, maps: Tensor) -> Tensor:
        """All windows of all ``maps`` (rows, channels, height, width), one a row, as views that are copied once."""
        top, left = self.padding
        padded = F.pad(maps, (left, left, top, top)).contiguous()
        size = (len(maps), *self.output(tuple(maps.shape[1:])), maps.shape[1], *self.kernel)
        row, channel, line, column = padded.stride()
        steps = (row, line * self.stride[0], column * self.stride[1])
        inner = (channel, line * self.dilation[0], column * self.dilation[1])
        return padded.as_strided(size, (*steps, *inner)).reshape(math.prod(size[:3]), -1)


class ExactFirstLayer(nn.Module):
    """``layer`` (``nn.Conv2d`` or ``nn.Linear``) on inputs of ``shape`` stored levels with noise of ``noise``; see the module.

    ``where`` names the layer in errors.
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear, shape: tuple[int, ...], noise: GridNoise, where: str) -> None:
        super().__init__()
        self.shape, self.grid = shape, noise.grid
        self.windows = _windows(layer, where) if isinstance(layer, nn.Conv2d) else None
        self.most_noise = float(noise.table.reach)
        weight = layer.weight.detach().double().flatten(1) * (noise.grid / noise.levels)
        bias = torch.zeros(len(weight), device=weight.device) if layer.bias is None else layer.bias.detach()
        self.most = noise.levels / noise.grid + self.most_noise
        whole, self.quantum = _rounded(weight, bias.double(), self.most, where)
        largest = float(weight.abs().max())
        # Measured, not only half a quantum: a layer whose weights are dyadic is not moved at all.
        moved = float((whole[:, :-1] * self.quantum - weight).abs().max())
        self.moved_bits = math.inf if moved == 0 else -math.log2(moved / largest)
        if self.moved_bits < _COARSEST_BITS:
            raise _too_coarse(where, self.moved_bits)
        self.weight = nn.Parameter(whole[:, :-1] * self.quantum, requires_grad=False)
        self.bias = nn.Parameter(whole[:, -1] * self.quantum, requires_grad=False)

    @property
    def base(self) -> str:
        """What the first layer of the base classifier is, in words."""
        if math.isinf(self.moved_bits):
            return "first layer in exact arithmetic with its own weights"
        return (
            f"first layer in exact arithmetic, its weights (divided by the number of levels) rounded to multiples of "
            f"2^{int(math.log2(self.quantum))}, moved by at most 2^-{math.floor(self.moved_bits)} of the largest"
        )

    def of_inputs(self, levels: Tensor) -> Tensor:
        """The layer's answer with its bias, float64, for inputs (or inputs plus noise) in stored levels."""
        bias = self.bias if self.windows is None else self.bias[:, None, None]
        return self._sums(levels, self.most) + bias

    def of_noise(self, levels: Tensor) -> Tensor:
        """What noise in stored levels adds to the answer, float64."""
        return self._sums(levels, self.most_noise)

    def _sums(self, levels: Tensor, most: float) -> Tensor:
        steps = levels.double() / self.grid
        if levels.numel() and not float(steps.abs().max()) <= most:
            raise ModelError(
                "numbers are larger than the exact first layer was made for",
                where="shared noise",
                got=f"{float(levels.abs().max()):g} levels",
                wanted=f"at most {most * self.grid:g}",
            )
        if self.windows is None:
            return steps.flatten(1) @ self.weight.T
        height, width = self.windows.output(self.shape)
        per_row = height * width * self.weight.shape[1] * self.windows.groups
        rows = max(1, _MOST_NUMBERS["cuda" if levels.is_cuda else "cpu"] // per_row)
        # Channels innermost in memory: the order that the layers after it are fastest in.
        parts = (steps[first : first + rows] for first in range(0, len(steps), rows))
        made = torch.cat([self._convolved(part, self.windows) for part in parts])
        return made.view(len(levels), height, width, -1).permute(0, 3, 1, 2)

    def _convolved(self, maps: Tensor, windows: Windows) -> Tensor:
        """(rows, channels, height, width) to (rows * positions, output channels)."""
        groups = zip(maps.chunk(windows.groups, dim=1), self.weight.chunk(windows.groups), strict=True)
        return torch.cat([windows.of(part) @ weight.T for part, weight in groups], dim=1)


def _windows(layer: nn.Conv2d, where: str) -> Windows:
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        raise ModelError(
            "shared noise does not know this padding",
            where=where,
            got=f"padding={layer.padding!r}, padding_mode={layer.padding_mode!r}",
            wanted="zeros, their number given",
            fix="certify without shared noise",
        )
    return Windows(pair(layer.kernel_size), pair(layer.stride), pair(layer.padding), pair(layer.dilation), layer.groups)


def _rounded(weight: Tensor, bias: Tensor, most: float, where: str) -> tuple[Tensor, float]:
    """Weights and, in the last column, biases as whole multiples of a power of two, and that power.

    ``most`` bounds the size of an input plus noise in grid steps.
    """
    both = torch.cat((weight, bias[:, None]), dim=1)
    if not bool(both.isfinite().all()):
        raise ModelError("a weight is not a finite number", where=where, got="NaN or infinity", wanted="finite weights")
    steps = math.ceil(most)
    largest_sum = float((weight.abs().sum(dim=1) * steps + bias.abs()).max())
    # A factor of two is left for what the rounding of the weights adds.
    quantum = 2.0 ** math.ceil(math.log2(max(largest_sum, 2.0**-500) / (_EXACT / 2)))
    whole = (both / quantum).round()
    # Integers from here on: the check itself must not round.
    for total, constant in zip(*(part.long().abs() for part in (whole[:, :-1], whole[:, -1])), strict=True):
        if int(total.sum()) * steps + int(constant) >= _EXACT:
            raise _too_coarse(where, 0)
    return whole, quantum


def _too_coarse(where: str, bits: float) -> ModelError:
    return ModelError(
        "the first layer cannot be made exact without changing its weights too much",
        where=where,
        got=f"weights that move by 2^-{max(0, math.floor(bits))} of the largest one",
        wanted=f"2^-{_COARSEST_BITS} or less",
        fix="certify without shared noise",
    )
