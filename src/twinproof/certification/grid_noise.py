"""Smoothing noise on a power-of-two grid, so that the certificate is about the numbers really used.

Float addition is not translation invariant, and that has been turned into false certificates (Voracek and Hein, ICLR 2023).
Here the noise is a multiple of a grid step h = 2^-k and so is what it is added to: at the input an integer number of stored
levels (h <= 1), behind the first layer the layer's answer rounded to the grid. Their sum is exact in float32. For x on the
grid, x + round_h(s Z) = round_h(x + s Z), so the network sees f(round_h(x + s Z)): a function of a continuous shift of the
noise, for which the theorems hold. At the input the claim covers every input that can be stored. Dividing by the number of
levels, and whatever else the network does, is part of the base classifier. docs/decisions/0002-noise-on-a-grid.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twinproof.certification.laplace_table import LAPLACE
from twinproof.certification.noise_table import NoiseTable, TableFamily
from twinproof.certification.normal_table import NORMAL
from twinproof.certification.philox_words import Stream
from twinproof.certification.table_noise import write_noise
from twinproof.errors import ConfigError
from twinproof.layers.noise import Law
from twinproof.randomness import Key

# Grid steps per deviation, at least: what the network sees has a variance larger by 1/12 of a step squared, which is a
# 50,000th, and the proof holds for any grid.
_STEPS_PER_SIGMA = 64
# Behind a layer a step costs radius (``layer_noise``): as many as a table in the cache, or at most in memory, allows.
_MOST_STEPS = 2**16
# The share of the deviation that rounding may cost where the table allows it.
_WANTED_SLACK = 0.01
_FLOAT32_EXACT = 2.0**24
_HALF = 0.5
_SMALLEST_SIGMA = 1e-6  # below it no grid fits float32, and its step would underflow long before sigma does
# Far above what the float64 functions err that turn votes into a radius, far below what a vote is worth.
_ARITHMETIC = 2.0**-36
_TABLES: Mapping[Law, TableFamily] = {Law.GAUSSIAN: NORMAL, Law.LAPLACE: LAPLACE}


@dataclass(frozen=True)
class GridNoise:
    """Noise of ``law`` and deviation ``sigma`` (Laplace: scale), rounded to ``grid``; ``input_noise``, ``layer_noise`` make it.

    It is added to numbers of at most ``largest`` in magnitude, in units of which one unit of sigma has ``levels``: the stored
    levels of inputs in [0, 1], or 1 where the numbers are the layer's own.

    Guarantees
        - Every draw plus every such number on the grid is exact in float32 (checked when the record is made).
        - Draw j for input i is a function of (key, purpose, i, j) alone, the same to the bit on every device.
        - ``tau`` bounds the total variation between the law of one drawn vector and the rounded noise, given ideal random
          bits: coordinates add up, and the tables prove the bound for one. It also pays for the float64 functions that turn
          votes into a radius.
    """

    sigma: float
    levels: int
    law: Law
    grid: float
    largest: float

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)
        if self.levels < 1:
            raise ConfigError("inputs need stored levels", where="levels", got=self.levels, wanted="at least 1, e.g. 255")
        if self.sigma < _SMALLEST_SIGMA or not _is_exact(self.law, self.steps, self.largest / self.grid):
            raise ConfigError(
                "input plus noise would not be exact in float32",
                where="sigma",
                got=f"sigma {self.sigma} on {self.levels} levels",
                wanted="a sigma between about 1e-4 and 10",
            )

    @property
    def steps(self) -> float:
        """Grid steps for one deviation: at least 64."""
        return self.sigma * self.levels / self.grid

    @property
    def table(self) -> NoiseTable:
        """Which multiple of the grid each 64-bit word stands for."""
        return _TABLES[self.law].table(self.steps)

    def tau(self, dimension: int) -> float:
        """Bound on the total variation distance per draw of a vector of ``dimension`` coordinates, and on the arithmetic."""
        return dimension * _TABLES[self.law].distance(self.steps) + _ARITHMETIC

    def draws(self, key: Key, purpose: str, index: int, first: int, count: int, dimension: int, device: torch.device) -> Tensor:
        """Draws from number ``first`` on for input ``index``: (count, dimension) float32 multiples of the grid, in levels."""
        noise = np.empty((count, dimension), dtype=np.float32)
        for part in write_noise(self.table, Stream.named(key, purpose, index), first, noise):
            part *= np.float32(self.grid)
        return torch.from_numpy(noise).to(device)


def input_noise(sigma: float, levels: int, law: Law = Law.GAUSSIAN) -> GridNoise:
    """Noise of deviation ``sigma`` in input units ([0, 1]) on inputs of ``levels`` stored levels.

    The grid is the coarsest one with at least 64 steps per deviation, and never coarser than one level.
    """
    _check_sigma(sigma)
    scale = max(sigma, _SMALLEST_SIGMA) * max(levels, 1)
    grid = min(1.0, 2.0 ** math.floor(math.log2(scale / _STEPS_PER_SIGMA)))
    return GridNoise(sigma, levels, law, grid, float(levels))


def layer_noise(sigma: float, law: Law, dimension: int, largest: float) -> GridNoise:
    """Noise on ``dimension`` numbers of a layer, each at most ``largest`` in magnitude before they are rounded to the grid.

    Rounding moves two vectors apart by at most sqrt(dimension) steps in l2 and ``dimension`` steps in l1, which is taken off
    every radius: the grid is the coarsest one that costs at most a hundredth of the deviation, as far as the largest table
    and exact sums in float32 allow it.
    """
    _check_sigma(sigma)
    cost = math.sqrt(dimension) if law is Law.GAUSSIAN else float(dimension)
    grid = _fine_grid(sigma, law, cost, largest)
    return GridNoise(sigma, 1, law, grid, largest + grid)


def joint_noise(scale: float, levels: int, dimension: int) -> GridNoise:
    """Laplace noise of ``scale`` (input units) for inputs of ``levels`` stored levels and for a layer of ``dimension`` numbers.

    The layer's noise is the same law on the same grid in other units; so the grid is as fine as rounding that layer asks for
    (``layer_noise``).

    Guarantees
        Input plus noise is less than 2^23 steps: divided by the number of levels, in float32, it can still be told which whole
        number of steps it was.
    """
    _check_sigma(scale)
    sigma = max(scale, _SMALLEST_SIGMA) * max(levels, 1)
    grid = min(1.0, _fine_grid(sigma, Law.LAPLACE, float(dimension), float(levels), room=_HALF))
    if not _is_exact(Law.LAPLACE, sigma / grid, levels / grid, room=_HALF):
        # Either the input is too many steps of a fine grid, or the draws are too many of one as coarse as a level.
        wrong, wanted = (
            ("small", "about 1e-4 or more") if scale < 1 else ("large", f"about {_largest_joint(levels):.1g} or less")
        )
        raise ConfigError(
            f"the noise on the input is too {wrong} for noise at two places",
            where="input_noise",
            got=f"scale {scale} on {levels} levels",
            wanted=f"a scale of {wanted}",
        )
    return GridNoise(scale, levels, Law.LAPLACE, grid, float(levels))


def _largest_joint(levels: int) -> float:
    """A scale, in input units, whose draws still fit half of float32's whole numbers in steps of one level."""
    return (_HALF * _FLOAT32_EXACT - levels - 1) / (_TABLES[Law.LAPLACE].cut * levels)


def _fine_grid(sigma: float, law: Law, cost: float, largest: float, room: float = 1.0) -> float:
    """The coarsest grid of which ``cost`` steps are a hundredth of the deviation, within what table and float32 allow."""
    steps = min(max(cost / _WANTED_SLACK, _STEPS_PER_SIGMA), _MOST_STEPS)
    grid = 2.0 ** math.floor(math.log2(sigma / steps))
    if sigma / grid > _MOST_STEPS:
        grid *= 2
    # The numbers' own rounding is up to one step more.
    while not _is_exact(law, sigma / grid, largest / grid + 1, room) and sigma / grid >= 2 * _STEPS_PER_SIGMA:
        grid *= 2
    return grid


def _is_exact(law: Law, steps: float, largest: float, room: float = 1.0) -> bool:
    """Whether numbers of up to ``largest`` steps plus any draw are whole numbers of steps in a share of those of float32."""
    return largest + _TABLES[law].cut * steps + 1 < room * _FLOAT32_EXACT


def _check_sigma(sigma: float) -> None:
    if not (sigma > 0 and math.isfinite(sigma)):
        raise ConfigError("the smoothing noise cannot be used", where="sigma", got=sigma, wanted="a finite number > 0")
