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

from twinproof.errors import ConfigError
from twinproof.randomness import Key

# Draws come in blocks of this many, each with a generator of its own, so that votes do not depend on how work is batched.
BLOCK = 1000
# Grid steps per standard deviation: coarse enough for a small tau, far finer than any network notices.
_STEPS_PER_SIGMA = 1024
# No draw goes beyond this many standard deviations; a normal number does with probability 2e-17.
_CUT = 8.5
_FLOAT32_EXACT = 2.0**24
_SMALLEST_SIGMA = 1e-6  # below it no grid fits float32, and its step would underflow long before sigma does


@dataclass(frozen=True)
class GridGaussian:
    """N(0, sigma^2) in input units ([0, 1]) on inputs of ``levels`` stored levels, rounded to ``grid`` levels.

    Guarantees
        - Every draw plus every storable input is exact in float32 (checked when the record is made).
        - ``tau`` bounds the total variation between the law of one drawn vector and the rounded Gaussian, given ideal
          random bits. Per coordinate there are at most 17 sigma / h + 2 cells, and a distance is half the sum over them. The
          generators (numpy's ziggurat on Philox on a CPU, Box-Muller on Philox on a GPU) place cell boundaries on a lattice of
          at least 52-bit uniforms and with library functions that err by a few units in the last place: a cell's probability
          is off by less than 2^-49. The cut adds less than 2^-50. Coordinates add up.
    """

    sigma: float
    levels: int

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and math.isfinite(self.sigma)):
            raise ConfigError("the smoothing noise cannot be used", where="sigma", got=self.sigma, wanted="a finite number > 0")
        if self.levels < 1:
            raise ConfigError("inputs need stored levels", where="levels", got=self.levels, wanted="at least 1, e.g. 255")
        if self.sigma < _SMALLEST_SIGMA or self.levels * (1 + _CUT * self.sigma) / self.grid >= _FLOAT32_EXACT:
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

    def tau(self, dimension: int) -> float:
        """Bound on the total variation distance per draw of a vector of ``dimension`` coordinates."""
        cells = 2 * _CUT * self.sigma * self.levels / self.grid
        return dimension * (cells * 2.0**-49 + 2.0**-50)

    def grows(self, device: torch.device) -> bool:
        """Whether a shorter block is the beginning of a longer one: so with numpy's generator, not with a GPU's."""
        return device.type != "cuda"

    def block(self, key: Key, purpose: str, index: int, number: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Draws number ``number`` * BLOCK onwards for input ``index``: float32 multiples of the grid, in stored levels."""
        scale = self.sigma * self.levels / self.grid
        if device.type == "cuda":
            generator = torch.Generator(device)
            generator.manual_seed(key.seed(purpose, index, number))
            normal = torch.empty(shape, dtype=torch.float64, device=device).normal_(generator=generator)
            return normal.clamp_(-_CUT, _CUT).mul_(scale).round_().mul_(self.grid).to(torch.float32)
        seed = int.from_bytes(key.stream(purpose, index, number, length=16), "little")
        drawn = np.random.Generator(np.random.Philox(key=seed)).standard_normal(shape)
        np.clip(drawn, -_CUT, _CUT, out=drawn)
        np.multiply(drawn, scale, out=drawn)
        np.rint(drawn, out=drawn)
        np.multiply(drawn, self.grid, out=drawn)
        return torch.from_numpy(drawn.astype(np.float32))
