"""Half-spaces behind two noises: for Laplace noise their scores, and the changes that flip them, are known exactly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import nn

from twinproof.layers.noise import Law, NoiseLayer, UniformSpread
from twinproof.layers.noise_placement import add_two_noises

Floats = NDArray[np.float64]
DUAL = {"l1": np.inf, "l2": 2, "linf": 1}
ALPHA, INPUTS = 0.05, 10_000
# More failures than this among 10,000 certificates have a probability below 1e-6 where each fails with at most ALPHA.
MOST_FAILURES = int(binom.isf(1e-6, INPUTS, ALPHA))


def linear(weight: Floats, bias: Floats | None = None) -> nn.Linear:
    """A float64 layer of these weights (outputs, inputs)."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        if bias is not None:
            layer.bias.copy_(torch.from_numpy(bias))
    return layer


@dataclass(frozen=True)
class TwoNoisesHalfspace:
    """Class 0 where ``read`` . (theta (x + e1) + e2) > ``cut``, else class 1.

    Everything that is added to read . theta x is symmetric, so that the smoothed answer changes where that crosses ``cut``.
    """

    theta: Floats
    read: Floats
    cut: float
    input_scale: float
    hidden_scale: float
    law: Law = Law.LAPLACE

    @property
    def direction(self) -> Floats:
        """How the margin grows with the input."""
        return np.asarray(self.read @ self.theta, dtype=np.float64)

    def radii(self, inputs: Floats, norm: str) -> Floats:
        """The exact distance to the other answer."""
        return np.asarray(np.abs(inputs @ self.direction - self.cut) / np.linalg.norm(self.direction, ord=DUAL[norm]))

    def score(self, margin: float) -> float:
        """P(margin + noise > 0), exactly: the distribution of a sum of Laplace numbers by partial fractions."""
        scales = self._scales
        # 1 / prod(1 + s^2 t^2) = sum_i c_i / (1 + s_i^2 t^2), c_i = prod over the others of s_i^2 / (s_i^2 - s_j^2).
        tail = 0.0
        for number, one in enumerate(scales):
            others = np.delete(scales, number)
            tail += float(np.prod(one**2 / (one**2 - others**2))) * np.exp(-abs(margin) / one) / 2
        return 1 - tail if margin >= 0 else tail

    @cached_property
    def _scales(self) -> Floats:
        """Of the noises that are added up, as seen by ``read``; those that are equal are told apart by a millionth."""
        found = np.concatenate([np.abs(self.direction) * self.input_scale, np.abs(self.read) * self.hidden_scale])
        kept = np.sort(found[found > 0])
        return np.asarray(kept * (1 + 1e-4 * np.arange(len(kept))), dtype=np.float64)

    def network(self, psi: float = 1.0) -> nn.Sequential:
        """The network with its two noise layers, whose scales are divided by ``psi``."""
        bias = np.linspace(-1, 1, len(self.theta))
        first = linear(self.theta, bias)
        offset = -self.cut - float(self.read @ bias)
        last = linear(np.stack((self.read, -self.read)), np.array([offset, -offset]))
        shape = (self.theta.shape[1],)

        def noise(size: tuple[int, ...], scale: float) -> NoiseLayer:
            return NoiseLayer(size, self.law, scale / psi, UniformSpread(size))

        inner = nn.Sequential(first, last)
        return add_two_noises(inner, shape, noise(shape, self.input_scale), lambda size: noise(size, self.hidden_scale))
