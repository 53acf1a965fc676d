"""Interval bounds of layers: where the outputs lie that a network in float32 computes from any inputs in a box.

Each coordinate of the input lies in an interval; each layer in turn says in which intervals its outputs lie (interval bound
propagation, Gowal et al. 2018, arXiv:1810.12715).

**What the network computes.** With n terms w_k x_k and a bias b, a sum in a float type of unit roundoff u, in any order, with
or without fused operations, is off by at most gamma_{n+1} (sum |w_k x_k| + |b|), gamma_k = k u / (1 - k u) (Higham, Accuracy
and Stability of Numerical Algorithms, chapters 3 and 4). Where numbers below the smallest normal one, eta, are flushed to zero,
add eta (2 n + 2 + sum |x_k| + sum |w_k|) for terms, partial sums, and the x_k and w_k themselves; ReLU and the maximum keep
order and zero, so that a flush before or behind them is the same. Here u = 2^-24 (float32; float64 errs less), |x_k| is at most
the largest magnitude in the interval, and sums that could reach 2^126 count as unbounded. An average of n numbers is off by
gamma_{n+3} of the average magnitude. The network's input is k / levels, off by up to 2 u where it is computed as a product with
1 / levels; changed by at most the radius, cut to [0, 1], rounded to float32: 3 u in all, for which each end moves by 2^-22.

**What is computed here.** Centres, radii and magnitudes, in float64, by matrix products with unfolded patches, which obey the
same bound with u = 2^-53. Let M = |W| max|x| + |b|. W c + b is off by gamma_{n+1} M, and |W| r and M exceed what is computed by
factors of at most 1 + gamma_{2n+2}. A share gamma_{4n+64} of |W| r and of M covers this, the few operations around these sums,
and the rounding of centres, radii and ends, each at most 2^-53 of M.

**Room.** Float32's share is taken 1 + 2^-10 times; 2^-10 of it is more than all errors of float64 (2^-34 n against 2^-51 n).
So any other outward computation of these quantities, layer by layer, that errs as little, finds intervals inside these: a
verifier with an arithmetic of its own confirms every radius at its own size, without a search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

UNIT32, UNIT64 = 2.0**-24, 2.0**-53
SMALLEST_NORMAL = 2.0**-126
LARGEST = 2.0**126
ROOM = 1 + 2.0**-10
INPUT_ROUNDING = 2.0**-22


def gamma(terms: int, unit: float) -> float:
    """The relative error of ``terms`` roundings in a row."""
    return terms * unit / (1 - terms * unit)


def float32_share(roundings: int) -> float:
    """What the network's own sums may err, relative to the sum of magnitudes."""
    return gamma(roundings, UNIT32) * ROOM


def float64_share(terms: int) -> float:
    """The same for what is computed here."""
    return gamma(4 * terms + 64, UNIT64)


def underflow(terms: int, reach: Tensor, weights: float = 0.0) -> Tensor:
    """What numbers below the smallest normal one may err, for each input; ``weights`` is the largest sum |w_k| of an output."""
    largest = reach.flatten(1).amax(1)
    error = 4 * SMALLEST_NORMAL * ((terms + 1) * (1 + largest) + weights)
    return error.reshape(-1, *(1,) * (reach.ndim - 1))


@dataclass(frozen=True, eq=False)
class Box:
    """The ends of the intervals, float64 (rows, ...); nan where nothing is known."""

    low: Tensor
    high: Tensor

    @property
    def centre(self) -> Tensor:
        """The middle; with ``radius``, and a rounding that is paid for with the layer's, it reaches both ends."""
        return (self.low + self.high) / 2

    @property
    def radius(self) -> Tensor:
        """Half the length."""
        return (self.high - self.low) / 2

    @property
    def reach(self) -> Tensor:
        """The largest magnitude."""
        return torch.maximum(self.low.abs(), self.high.abs())


def ball(stored: Tensor, levels: int, size: Tensor) -> Box:
    """All that a network may be given for inputs ``stored`` (whole numbers of levels) changed by up to ``size`` each."""
    centre = stored.to(torch.float64) / levels
    size = size.reshape(-1, *(1,) * (stored.ndim - 1)) + INPUT_ROUNDING
    return Box((centre - size).clamp(min=0), (centre + size).clamp(max=1))


def known(half: Tensor, magnitude: Tensor) -> Tensor:
    """``half``, or nan where sums of this ``magnitude`` could have overflowed in the network."""
    return torch.where(magnitude < LARGEST, half, math.nan)


class Layer(Protocol):
    """Says where its outputs lie."""

    def bound(self, box: Box) -> Box:
        """The intervals of the outputs, as computed in float32 from any inputs in ``box``."""

    def numbers(self, box: Box) -> int:
        """How many numbers it holds at once, for the rows of ``box``."""


@dataclass(frozen=True, eq=False)
class Monotone:
    """ReLU, maximum, flatten: exact in floats, and monotone in each number."""

    operation: Callable[[Tensor], Tensor]

    def bound(self, box: Box) -> Box:
        """Of the ends."""
        return Box(self.operation(box.low), self.operation(box.high))

    def numbers(self, box: Box) -> int:
        """Both ends."""
        return 4 * box.low.numel()


@dataclass(frozen=True, eq=False)
class Ramp:
    """A rising line cut to [0, 1], one rounding off where it is not cut: ``line`` is evaluated exactly enough in float64.

    Cut ends stay where they are: only what lies within a rounding of them moves.
    """

    line: Callable[[Tensor], Tensor]

    def bound(self, box: Box) -> Box:
        """Of the ends, rounded outwards before they are cut."""
        return Box((self.line(box.low) - UNIT32).clamp(0, 1), (self.line(box.high) + UNIT32).clamp(0, 1))

    def numbers(self, box: Box) -> int:
        """Both ends."""
        return 4 * box.low.numel()


@dataclass(frozen=True, eq=False)
class Average:
    """The mean over windows; ``terms`` says of how many numbers, from the sizes of the map's axes."""

    operation: Callable[[Tensor], Tensor]
    terms: Callable[[Sequence[int]], int]

    def bound(self, box: Box) -> Box:
        """Monotone, and rounded."""
        terms, reach = self.terms(box.low.shape[2:]), box.reach
        magnitude = self.operation(reach)
        error = magnitude * (float32_share(terms + 3) + float64_share(terms)) + underflow(terms, reach)
        error = known(error, magnitude * terms)
        return Box(self.operation(box.low) - error, self.operation(box.high) + error)

    def numbers(self, box: Box) -> int:
        """Both ends and the reach."""
        return 6 * box.low.numel()


@dataclass(frozen=True)
class Windows:
    """Which patches of a map (rows, channels, height, width) a convolution sees; ``padding`` before and after each axis."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]
    groups: int

    def sizes(self, height: int, width: int) -> tuple[int, int]:
        """The map that the convolution makes."""
        top, bottom, left, right = self.padding
        spans = [step * (taps - 1) + 1 for step, taps in zip(self.dilation, self.kernel, strict=True)]
        high, wide = height + top + bottom - spans[0], width + left + right - spans[1]
        if min(high, wide) < 0:
            raise ValueError(f"a kernel of {self.kernel} for maps of {height}x{width}")
        return high // self.stride[0] + 1, wide // self.stride[1] + 1

    def of(self, x: Tensor) -> Tensor:
        """(groups, rows x places, terms): every patch, in one copy."""
        top, bottom, left, right = self.padding
        down, across = self.sizes(*x.shape[2:])
        x = F.pad(x, (left, right, top, bottom)).contiguous()
        rows, channels, _, _ = x.shape
        seen = channels // self.groups
        by_row, by_channel, by_line, by_column = x.stride()
        patches = x.as_strided(
            (self.groups, rows, down, across, seen, *self.kernel),
            (
                seen * by_channel,
                by_row,
                self.stride[0] * by_line,
                self.stride[1] * by_column,
                by_channel,
                self.dilation[0] * by_line,
                self.dilation[1] * by_column,
            ),
        )
        return patches.reshape(self.groups, rows * down * across, -1)


@dataclass(frozen=True, eq=False)
class Sums:
    """A linear layer or convolution: sums of products with ``weight`` (groups, terms, outputs of a group), and a ``bias``."""

    weight: Tensor
    bias: Tensor
    windows: Windows | None
    axes: int = 0

    @property
    def terms(self) -> int:
        """Of one sum."""
        return int(self.weight.shape[1])

    @cached_property
    def magnitudes(self) -> Tensor:
        """|W|."""
        return self.weight.abs()

    @cached_property
    def longest(self) -> float:
        """The largest sum of magnitudes of one output's weights."""
        return float(self.magnitudes.sum(1).amax()) + float(self.bias.abs().amax())

    def products(self, x: Tensor, weight: Tensor) -> Tensor:
        """``weight`` times each patch of ``x``, in the shape of the layer's output."""
        if self.windows is None:
            return x @ weight[0]
        maps = x if self.axes == 2 else x.unsqueeze(2)
        sizes = self.windows.sizes(*maps.shape[2:])
        sums = (self.windows.of(maps) @ weight).reshape(self.windows.groups, len(x), *sizes, -1)
        made = sums.permute(1, 0, 4, 2, 3).reshape(len(x), -1, *sizes)
        return made if self.axes == 2 else made.squeeze(2)

    def shifted(self, sums: Tensor, by: Tensor) -> Tensor:
        """``sums`` plus one number for each output or map."""
        return sums + by.reshape(-1, *(1,) * (sums.ndim - 2))

    def spread(self, box: Box) -> tuple[Tensor, Tensor]:
        """|W| r, and the sum of magnitudes |W| max|x| + |b|."""
        both = self.products(torch.cat((box.radius, box.reach)), self.magnitudes)
        moved, magnitude = both.chunk(2)
        return moved, self.shifted(magnitude, self.bias.abs())

    def bound(self, box: Box) -> Box:
        """W c + b plus or minus |W| r and what both computations err."""
        middle = self.shifted(self.products(box.centre, self.weight), self.bias)
        moved, magnitude = self.spread(box)
        own = float64_share(self.terms)
        error = magnitude * (float32_share(self.terms + 1) + own)
        small = underflow(self.terms, box.reach, self.longest).reshape(-1, *(1,) * (middle.ndim - 1))
        half = known(moved * (1 + own) + error + small, magnitude)
        return Box(middle - half, middle + half)

    def numbers(self, box: Box) -> int:
        """Patches of centre, radius and reach."""
        sizes = box.low.shape[2:]
        if len(sizes) != self.axes:
            raise ValueError(f"{len(sizes)} axes instead of {self.axes} behind the first")
        places = 1 if self.windows is None else math.prod(self.windows.sizes(*(1,) * (2 - self.axes), *sizes))
        return 4 * len(box.low) * places * (self.weight.shape[0] * self.terms + self.bias.numel())
