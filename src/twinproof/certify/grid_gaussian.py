"""Gaussian smoothing noise on a power-of-two grid, so that the certificate is about the numbers really used.

Float addition is not translation invariant, and that has been turned into false certificates (Voracek and Hein, ICLR 2023).
Here an input is an integer number of stored levels and the noise a multiple of a grid step h = 2^-k <= 1: their sum is exact
in float32. For x on the grid, x + round_h(s Z) = round_h(x + s Z), so the network sees f(round_h(x + s Z)): a function of a
continuous Gaussian shift, for which Cohen et al.'s theorem holds. The claim covers every input that can be stored. Dividing by
the number of levels, and whatever else the network does, is part of the base classifier. docs/decisions/0002-noise-on-a-grid.md
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from twinproof.certify.normal_table import CUT, NormalTable, distance, normal_table
from twinproof.certify.philox_words import Stream
from twinproof.certify.table_noise import write_noise
from twinproof.errors import ConfigError
from twinproof.randomness import Key

# Grid steps per standard deviation, at least: what the network sees has a variance larger by 1/12 of a step squared, which is
# a 50,000th, and the proof holds for any grid.
_STEPS_PER_SIGMA = 64
_FLOAT32_EXACT = 2.0**24
_SMALLEST_SIGMA = 1e-6  # below it no grid fits float32, and its step would underflow long before sigma does
# Far above what the float64 functions err that turn votes into a radius, far below what a vote is worth.
_ARITHMETIC = 2.0**-36


@dataclass(frozen=True)
class GridGaussian:
    """N(0, sigma^2) in input units ([0, 1]) on inputs of ``levels`` stored levels, rounded to ``grid`` levels.

    Guarantees
        - Every draw plus every storable input is exact in float32 (checked when the record is made).
        - Draw j for input i is a function of (key, purpose, i, j) alone, the same to the bit on every device.
        - ``tau`` bounds the total variation between the law of one drawn vector and the rounded Gaussian, given ideal random
          bits: coordinates add up, and ``normal_table`` proves the bound for one. It also pays for the float64 functions that
          turn votes into a radius.
    """

    sigma: float
    levels: int

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and math.isfinite(self.sigma)):
            raise ConfigError("the smoothing noise cannot be used", where="sigma", got=self.sigma, wanted="a finite number > 0")
        if self.levels < 1:
            raise ConfigError("inputs need stored levels", where="levels", got=self.levels, wanted="at least 1, e.g. 255")
        if self.sigma < _SMALLEST_SIGMA or self.levels / self.grid + CUT * self.steps + 1 >= _FLOAT32_EXACT:
            raise ConfigError(
                "input plus noise would not be exact in float32",
                where="sigma",
                got=f"sigma {self.sigma} on {self.levels} levels",
                wanted="a sigma between about 1e-4 and 10",
            )

    @property
    def grid(self) -> float:
        """The grid step h in stored levels: a power of two, at most 1."""
        return min(1.0, 2.0 ** math.floor(math.log2(self.sigma * self.levels / _STEPS_PER_SIGMA)))

    @property
    def steps(self) -> float:
        """Grid steps for one standard deviation: at least 64."""
        return self.sigma * self.levels / self.grid

    @property
    def table(self) -> NormalTable:
        """Which multiple of the grid each 64-bit word stands for."""
        return normal_table(self.steps)

    def tau(self, dimension: int) -> float:
        """Bound on the total variation distance per draw of a vector of ``dimension`` coordinates, and on the arithmetic."""
        return dimension * distance(self.steps) + _ARITHMETIC

    def draws(self, key: Key, purpose: str, index: int, first: int, count: int, dimension: int, device: torch.device) -> Tensor:
        """Draws from number ``first`` on for input ``index``: (count, dimension) float32 multiples of the grid, in levels."""
        noise = np.empty((count, dimension), dtype=np.float32)
        for part in write_noise(self.table, Stream.named(key, purpose, index), first, noise):
            part *= np.float32(self.grid)
        return torch.from_numpy(noise).to(device)
