"""Scales that are drawn at random for every row, and the worst that can be drawn."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from twinproof.errors import ConfigError
from twinproof.layers.noise.spread import Spread


class RandomSpread(Spread):
    """K r = w / mean(w) with weights w_k drawn uniformly from [1 - width, 1 + width], anew for every row and call.

    Guarantees
        No scale is below ``least()``, rounding included: the smallest value of (1 - width) / mean(w), which all other weights
        at 1 + width give, is computed in float64, rounded to a float32, and ``forward`` lifts to it whatever the float32
        arithmetic put below.
    """

    random: ClassVar[bool] = True

    def __init__(self, shape: tuple[int, ...], width: float) -> None:
        super().__init__(shape)
        if not 0 <= width < 1:
            raise ConfigError("the width of the random shares is not usable", where="width", got=width, wanted="in [0, 1)")
        self.width = float(width)
        mean = ((1 - self.width) + (self.coordinates - 1) * (1 + self.width)) / self.coordinates
        self._lowest = float(np.float32(((1 - self.width) / mean) ** 0.5))
        # Not part of the state: it only tells on which device the layer lies.
        self.register_buffer("_ones", torch.ones(()), persistent=False)
        self._ones: Tensor

    def forward(self, noise: Tensor) -> Tensor:
        """Each coordinate times the scale drawn for its row."""
        uniform = torch.rand(noise.shape, dtype=torch.float32, device=noise.device)
        weights = uniform * (2 * self.width) + (1 - self.width)
        means = weights.mean(dim=tuple(range(1, weights.dim())), keepdim=True)
        return noise * (weights / means).sqrt().clamp(min=self._lowest)

    def least(self) -> Tensor:
        """The same bound for every coordinate."""
        return (self._ones * self._lowest).expand(self.coordinates)

    def extra_repr(self) -> str:
        """For ``print(network)``."""
        return f"coordinates={self.coordinates}, width={self.width}"
