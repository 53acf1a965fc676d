"""Networks with noise whose smoothed answers and exact radii are known, for every law, place and norm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from certify_oracles import Truth
from numpy.typing import NDArray
from torch import nn

from twinproof.layers.noise import FixedSpread, Law, NoiseLayer, Place, Spread, UniformSpread
from twinproof.layers.noise_placement import add_noise

DUAL = {"l1": np.inf, "l2": 2, "linf": 1}


@dataclass(frozen=True)
class NoisyHalfspace:
    """Class 0 where ``direction`` . x + ``offset`` is positive, else class 1; the noise, being symmetric, moves no boundary.

    In float64 the layer before the noise is S v (direction .), v of length 1 in the norm of the law, and what follows looks
    along v: so nothing is lost on the way, and a tight bound with an exact norm reaches the true radius.
    """

    network: nn.Sequential
    direction: NDArray[np.float64]
    offset: float

    def truth(self, inputs: NDArray[np.float64], norm: str) -> Truth:
        """The answer and the distance to the boundary in ``norm``."""
        margin = inputs @ self.direction + self.offset
        return Truth((margin <= 0).astype(np.int64), np.abs(margin) / np.linalg.norm(self.direction, ord=DUAL[norm]))


def _along(law: Law, size: int) -> NDArray[np.float64]:
    """A direction in which the law's noise hides least: any for Gaussian noise, an axis for Laplace's."""
    signs = np.where(np.arange(size) % 2, -1.0, 1.0)
    return signs / math.sqrt(size) if law is Law.GAUSSIAN else np.eye(size)[0]


def _linear(weight: NDArray[np.float64], bias: NDArray[np.float64]) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(bias))
    return layer


def _read(direction: NDArray[np.float64], offset: float) -> nn.Linear:
    return _linear(np.stack((direction, -direction)), np.array([offset, -offset]))


class _Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()


def noisy_halfspace(
    law: Law,
    place: Place,
    deviation: float,
    direction: NDArray[np.float64],
    *,
    scales: NDArray[np.float64],
    sharpness: float = 1.0,
) -> NoisyHalfspace:
    """A boundary through the middle of the unit cube; ``scales`` are those of the layer, and not used at the input.

    ``sharpness`` multiplies the outputs: it decides how near scores come to votes.
    """
    offset = -float(direction.sum()) / 2 + 0.01

    def layer(shape: tuple[int, ...]) -> NoiseLayer:
        spread: Spread = UniformSpread(shape) if place is Place.INPUT else FixedSpread(shape, scales)
        return NoiseLayer(shape, law, deviation, spread)

    if place is Place.INPUT:
        inner = nn.Sequential(_Double(), _read(sharpness * direction, sharpness * offset))
        return NoisyHalfspace(add_noise(inner, direction.shape, place, layer), direction, offset)
    exact = scales.astype(np.float32).astype(np.float64)
    along = _along(law, len(exact))
    bias = np.linspace(-1, 1, len(exact))
    first = _linear(np.outer(exact * along, direction), bias)
    # What looks along v must undo the bias, or the boundary would not be where it is said to be.
    last = _read(sharpness * along / exact, sharpness * (offset - float((along / exact) @ bias)))
    return NoisyHalfspace(add_noise(nn.Sequential(first, last), direction.shape, place, layer), direction, offset)
