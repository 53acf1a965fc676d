"""Networks whose smoothed answers and exact radii are known, and the checks that could refute certificates about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor, nn

from twinproof.certification.bounds import TightGaussian
from twinproof.certification.confidence import Evidence
from twinproof.certification.grid_noise import GridNoise
from twinproof.certification.method import Sampling
from twinproof.certification.radius import Certified, RadiusRule
from twinproof.layers.noise import FixedSpread, Law, NoiseLayer, Place, Spread, UniformSpread
from twinproof.layers.noise_placement import add_noise
from twinproof.runs.records import ABSTAIN, Certificate

# Of 10,000 certificates at alpha 0.001 more than this many fail with probability below 1e-6 (binomial tail).
MOST_FAILURES_IN_10_000 = 28


def plain_rule(sigma: float, tau: float) -> RadiusRule:
    """Cohen et al.'s CERTIFY: votes, Clopper-Pearson, Gaussian noise at the input, l2."""
    return RadiusRule(TightGaussian(), classes=2, sigma=sigma, tau=tau)


def rule_for(noise: GridNoise, dimension: int) -> RadiusRule:
    """The plain rule for noise on an input of ``dimension`` coordinates."""
    return plain_rule(noise.sigma, noise.tau(dimension))


def bound_from_votes(votes: NDArray[np.int64], sampling: Sampling, sigma: float, tau: float) -> Certified:
    """What each number of votes certifies by the plain rule."""
    return plain_rule(sigma, tau).certified(Evidence.of_votes(sampling.n, votes), sampling.alpha)


class Affine(nn.Module):
    """Scores W x + b, in float64 so that the network's own rounding plays no part."""

    def __init__(self, weight: NDArray[np.float64], bias: NDArray[np.float64]) -> None:
        super().__init__()
        self.register_buffer("weight", torch.from_numpy(weight))
        self.register_buffer("bias", torch.from_numpy(bias))

    def forward(self, x: Tensor) -> Tensor:
        return x.to(torch.float64) @ self.weight.T + self.bias  # type: ignore[operator]


class Interval(nn.Module):
    """In one dimension: class 1 inside [low, high], class 0 outside."""

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x: Tensor) -> Tensor:
        inside = ((x[:, 0] >= self.low) & (x[:, 0] <= self.high)).to(torch.float32)
        return torch.stack((1 - inside, inside), dim=1)


@dataclass(frozen=True)
class Truth:
    """The smoothed classifier's answer for each input and its exact distance to the next input with another answer."""

    classes: NDArray[np.int64]
    radii: NDArray[np.float64]


def affine_truth(model: Affine, inputs: NDArray[np.float64]) -> Truth:
    """Two classes, or three whose boundaries are axes of symmetry: smoothing moves no boundary, so geometry is the answer."""
    weight, bias = (np.asarray(value) for value in (model.weight, model.bias))
    scores = inputs @ weight.T + bias
    classes = scores.argmax(axis=1)
    gaps = scores[np.arange(len(scores)), classes][:, None] - scores
    lengths = np.linalg.norm(weight[classes][:, None, :] - weight[None, :, :], axis=2)
    distances = np.divide(gaps, lengths, out=np.full_like(gaps, np.inf), where=lengths > 0)
    return Truth(classes.astype(np.int64), distances.min(axis=1))


def interval_probability(model: Interval, x: float, sigma: float) -> float:
    """How often the noisy input lies inside the interval."""
    return float(norm.cdf((model.high - x) / sigma) - norm.cdf((model.low - x) / sigma))


def interval_truth(model: Interval, inputs: NDArray[np.float64], sigma: float) -> Truth:
    """The answer is 1 between the two points at which the probability is one half, which are found numerically."""
    middle = (model.low + model.high) / 2
    edge = float(brentq(lambda x: interval_probability(model, x, sigma) - 0.5, middle, middle + 100 * sigma, xtol=1e-12))
    reach = edge - middle
    offset = np.abs(inputs[:, 0] - middle)
    return Truth((offset < reach).astype(np.int64), np.abs(offset - reach))


def two_classes(generator: np.random.Generator, dimension: int) -> Affine:
    """A random hyperplane near the middle of the unit cube."""
    direction = generator.normal(size=dimension)
    bias = -float(direction @ np.full(dimension, 0.5)) + 0.05 * float(generator.normal())
    return Affine(np.stack((direction, -direction)), np.array([bias, -bias]))


def three_sectors() -> Affine:
    """Three sectors of 120 degrees around (1/2, 1/2); a third coordinate does not matter."""
    angles = np.array([0.3, 0.3 + 2 * math.pi / 3, 0.3 + 4 * math.pi / 3])
    weight = np.stack((np.cos(angles), np.sin(angles), np.zeros(3)), axis=1)
    return Affine(weight, -weight @ np.array([0.5, 0.5, 0.0]))


def failures(certificates: Sequence[Certificate], truth: Truth) -> int:
    """Certificates that say something false: another class, or a radius beyond the boundary."""
    return sum(
        made.prediction != ABSTAIN and (made.prediction != int(answer) or made.radius > radius)
        for made, answer, radius in zip(certificates, truth.classes, truth.radii, strict=True)
    )


def assert_few_failures(failed: int, total: int) -> None:
    """The check at alpha 0.001 for 10,000 certificates; refuses smaller samples, for which its limit would be too lax."""
    assert total >= 10_000
    assert failed <= MOST_FAILURES_IN_10_000 * total / 10_000, f"{failed} of {total} certificates are false"


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
