"""How far Laplace noise on many coordinates may be shifted: by a Gaussian bound, and exactly where all coordinates move alike.

Written again from docs/formats/run.md. For the second, T(a) is the least that is left, after the shift, of an event which fails
with probability a before it; the answer stays while T(1 - low) + T(high) > 1. T(a) is the largest g(c) - c a, and g(c), the
integral of the smaller of the shifted density and c times the density, is found from below: the privacy loss of one coordinate
on a grid, each piece of it at both ends with its mass and the mean of its exponential (connecting the dots), convolved. Sizes
between two that are computed use that ln g is concave in the size where ln c is linear.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Whole = NDArray[np.int64]

# The table of the format: sizes, how far they go, and the grid of losses.
_SIZES, _FURTHEST, _GRID = 400, 12.0, 4096
_LOST = 2.0**-36
_TRIES = 30


def gaussian_reach(low: Array, high: Array) -> Array:
    """In l2: each coordinate moved by v is at worst a normal number of deviation 1 moved by sqrt(pi/2) v."""
    from scipy.special import erfcinv

    with np.errstate(all="ignore"):
        return np.asarray((erfcinv(2 * high) - erfcinv(2 * low)) * (1 / math.sqrt(math.pi)))


@dataclass(frozen=True, eq=False)
class Trusted:
    """ln c, and g(c) from below, where every coordinate moves by one size."""

    levels: Array
    least: Array

    @cached_property
    def _falls(self) -> Array:
        """How much less g grows from each level to the next: its slopes, below zero, in growing order."""
        with np.errstate(invalid="ignore"):
            slopes = np.nan_to_num(np.diff(self.least) / np.diff(np.exp(self.levels)))
        return np.asarray(-np.maximum.accumulate(slopes[::-1])[::-1], dtype=np.float64)

    def best(self, errors: Array) -> tuple[Whole, Array]:
        """The level that serves each error best (every one is sound), and T of it."""
        places = np.searchsorted(self._falls, -errors)
        return places, self.least[places] - np.exp(self.levels[places]) * errors


def equal_shifts_reach(dimension: int, low: Array, high: Array) -> Array:
    """The largest size in linf, from below, for each pair with low > high."""
    errors = np.stack((1 - low, high), axis=1)
    step = dimension**-0.25 / _SIZES
    first = np.zeros(len(errors), dtype=np.int64)
    end = np.full(len(errors), int(_FURTHEST / math.sqrt(dimension) / step), dtype=np.int64)
    while (end - first > 1).any():
        middle = (first + end) // 2
        for size, here in _groups(middle):
            stays = _trusted(dimension, size, step).best(errors[here])[1].sum(axis=1) > 1
            first[here], end[here] = np.where(stays, size, first[here]), np.where(stays, end[here], size)
    found = np.zeros(len(errors))
    for size, here in _groups(first):
        before, after = (_trusted(dimension, number, step) for number in (size, size + 1))
        found[here] = step * (size + _share_of_a_step(before, after, errors[here]))
    return found


def _groups(numbers: Whole) -> Iterator[tuple[int, Whole]]:
    """Each number, and where it stands."""
    order = np.argsort(numbers, kind="stable")
    different, starts = np.unique(numbers[order], return_index=True)
    return zip(different.tolist(), np.split(order, starts[1:]), strict=True)


def _share_of_a_step(before: Trusted, after: Trusted, errors: Array) -> Array:
    (one, _), (two, _) = before.best(errors), after.best(errors)
    best = np.zeros(len(errors))
    for start, stop in ((one, one), (one, two), (two, two)):
        shares, low, high = np.zeros(len(errors)), np.log(before.least[start]), np.log(after.least[stop])
        for halving in range(1, _TRIES + 1):
            tried = (shares + 0.5**halving)[:, None]
            least = np.exp((1 - tried) * low + tried * high)
            least -= np.exp((1 - tried) * before.levels[start] + tried * after.levels[stop]) * errors
            shares = np.where(least.sum(axis=1) > 1, tried[:, 0], shares)
        best = np.maximum(best, shares)
    return best


@lru_cache(maxsize=512)
def _trusted(dimension: int, number: int, step: float) -> Trusted:
    # Losses are (2 place - dimension * cells) * size / cells, and so are levels: their places are those of every size.
    size, root = number * step, math.sqrt(dimension)
    cells = 1 << round(math.log2(_GRID / root))
    most, span = dimension * cells, 7.5 * root * cells
    stride = next(one for one in (8, 4, 2, 1) if one == 1 or most >= one * 8192)
    places = stride * np.arange(
        max(0, math.ceil((most / 2 - span) / stride)), math.floor(min(most, most / 2 + span) / stride) + 1
    )
    levels = size * (2 * places / cells - dimension)
    if number == 0:
        return Trusted(levels, np.minimum(np.exp(levels), 1.0))
    lowest, masses = _sum_of(_losses(size, cells), dimension)
    # From each place on, nothing behind the last; what wraps around or is wrong in a transform is less than what is taken off.
    beyond = np.append(np.cumsum(masses[::-1])[::-1], 0.0)

    def from_place(place: Whole) -> Array:
        return np.maximum(beyond[np.clip(place - lowest, 0, len(masses))] - _LOST, 0.0)

    least = from_place(dimension * cells - places) + np.exp(levels) * from_place(places + 1)
    return Trusted(levels, np.maximum(least, 1e-300))


def _losses(size: float, cells: int) -> Array:
    """How likely each loss from -size to size is, for one coordinate; both ends are what lies outside of the two peaks."""
    edges = np.linspace(0, size, cells + 1)
    inside = (np.exp(-edges[:-1]) - np.exp(-edges[1:])) / 2
    shifted = (np.exp(edges[1:] - size) - np.exp(edges[:-1] - size)) / 2
    ratios = np.exp(2 * edges - size)
    upper = (shifted - ratios[:-1] * inside) / (ratios[1:] - ratios[:-1])
    found = np.zeros(cells + 1)
    found[:-1] += inside - upper
    found[1:] += upper
    found[0] += 0.5
    found[-1] += math.exp(-size) / 2
    return found


def _sum_of(masses: Array, times: int) -> tuple[int, Array]:
    """The place of the first, and the masses around the mean, of a sum of so many independent draws, by Fourier's transform.

    What is further from the mean than 4.5 sqrt(times) spans of one draw, less than 1e-17 (Hoeffding), falls on other places.
    """
    from scipy.fft import irfft, next_fast_len, rfft

    span = len(masses) - 1
    length = next_fast_len(min(times * span + 1, math.ceil(9 * math.sqrt(times) * span) + 1), real=True)
    mean = times * float(np.arange(span + 1) @ masses)
    lowest = 0 if length > times * span else int(mean) - length // 2
    around = irfft(rfft(masses, length) ** times, length)
    return lowest, np.roll(around, -lowest)
