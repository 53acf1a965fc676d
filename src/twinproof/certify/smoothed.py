"""The smoothed classifier and CERTIFY (Cohen, Rosenfeld and Kolter, ICML 2019), batched across inputs.

Guarantees
    For each input, with probability at least 1 - alpha over the noise: if CERTIFY does not abstain, the smoothed classifier
    (the class that the network most likely gives to the input plus noise) answers ``prediction`` for every storable input whose
    l2 distance is smaller than ``radius``. Proof: the class is chosen on n0 draws; the n estimation draws are fresh, so their
    votes are binomial and the Clopper-Pearson bound holds; tau covers the sampler; Cohen et al.'s theorem 1 gives
    sigma * Phi^-1(p). Radii are rounded down; tau also exceeds the rounding of the float64 arithmetic by orders of magnitude.
    Tests: linear classifiers, whose radius is known exactly; planted bugs (votes taken for probabilities,
    selection draws reused, sigma off by 2 %, radii rounded up).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from twinproof.certify.base_classifier import classes_of
from twinproof.certify.clopper_pearson import clopper_pearson_lower
from twinproof.certify.grid_gaussian import GridGaussian
from twinproof.certify.votes import VoteCounter
from twinproof.errors import ConfigError, DataError, ModelError
from twinproof.layers.modes import evaluation_mode
from twinproof.randomness import Key
from twinproof.rounding import round_down
from twinproof.runs.certificates import ABSTAIN, UNKNOWN, Certificate

NORM = "l2"
# Rows per forward pass when the caller does not say: enough to fill the device, small enough for its caches or memory.
_ROWS = {"cpu": 2000, "cuda": 64_000}
_MOST_DRAWS = 10**12


@dataclass(frozen=True)
class Sampling:
    """How many draws and how sure: n0 to choose the class, n to bound its probability, alpha the failure per input."""

    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001

    def __post_init__(self) -> None:
        for name in ("n0", "n"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} cannot be used", where=name, got=getattr(self, name), wanted="at least 1 draw")
        if not 0 < self.alpha < 1:
            raise ConfigError("alpha is no probability", where="alpha", got=self.alpha, wanted="0 < alpha < 1, e.g. 0.001")


@dataclass(frozen=True)
class Bound:
    """For each input, whether the bound exceeds one half, and the l2 radius it gives (rounded down, 0 where it does not)."""

    certified: NDArray[np.bool_]
    radii: NDArray[np.float64]


def bound_from_votes(votes: NDArray[Any], sampling: Sampling, sigma: float, tau: float) -> Bound:
    """What each number of votes certifies."""
    from scipy.special import ndtri

    probability = clopper_pearson_lower(votes, sampling.n, sampling.alpha) - tau
    certified = probability > 0.5
    radii = sigma * ndtri(np.where(certified, probability, 0.5))
    return Bound(certified, np.array([round_down(float(radius)) for radius in radii]))


def largest_radius(sampling: Sampling, noise: GridGaussian, dimension: int) -> float:
    """The radius that n unanimous votes give, rounded down; an (n, alpha) that can never certify anything is refused."""
    tau = noise.tau(dimension)
    radius = _unanimous(sampling.n, sampling, noise.sigma, tau)
    if radius <= 0:
        needed = _smallest_useful_n(sampling, noise.sigma, tau)
        raise ConfigError(
            "these settings can never certify anything",
            where="n, alpha",
            got=f"n={sampling.n}, alpha={sampling.alpha}: even unanimous votes give no radius",
            wanted=f"n of at least {needed} at this alpha",
            fix=f"raise n to {needed} or more (10,000 is usual), or raise alpha",
        )
    return radius


def _unanimous(n: int, sampling: Sampling, sigma: float, tau: float) -> float:
    return float(bound_from_votes(np.array([n]), replace(sampling, n=n), sigma, tau).radii[0])


def _smallest_useful_n(sampling: Sampling, sigma: float, tau: float) -> int:
    """The least n whose unanimous votes give a radius: by bisection, because tau and rounding shift alpha^(1/n) > 1/2."""
    low, high = sampling.n, 2 * sampling.n
    while _unanimous(high, sampling, sigma, tau) <= 0:
        if high > _MOST_DRAWS:
            raise ConfigError("no number of draws can certify this input", where="sigma", got=sigma, wanted="a larger sigma")
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _unanimous(middle, sampling, sigma, tau) > 0 else (middle, high)
    return high


@dataclass(frozen=True)
class SmoothedClassifier:
    """A network made robust by voting over Gaussian noise at its input; any ``nn.Module`` that maps [0, 1] inputs to scores."""

    model: nn.Module
    noise: GridGaussian

    def certify(
        self,
        inputs: Tensor | NDArray[Any],
        labels: Sequence[int] | None = None,
        *,
        sampling: Sampling | None = None,
        key: Key | None = None,
        first_index: int = 0,
        rows: int | None = None,
    ) -> list[Certificate]:
        """CERTIFY for each input.

        ``inputs`` are stored levels (integers 0..levels) or floats in [0, 1] that lie on those levels. ``labels`` only fill
        the records; without them they are unknown and nothing is counted correct. ``first_index`` numbers the inputs: with the
        same key the same number gets the same noise, whatever the batch. ``rows`` changes speed and memory only.
        """
        sampling = sampling or Sampling()
        stored = self._stored_levels(inputs)
        _check_numbering(len(stored), labels, first_index, rows)
        dimension = math.prod(stored.shape[1:])
        largest_radius(sampling, self.noise, dimension)
        indices = list(range(first_index, first_index + len(stored)))
        if not indices:
            return []
        top, votes = self._votes(stored, indices, sampling, key or Key.from_system(), rows or _ROWS[stored.device.type])
        bound = bound_from_votes(votes, sampling, self.noise.sigma, self.noise.tau(dimension))
        truth = [UNKNOWN] * len(indices) if labels is None else [int(label) for label in labels]
        return [
            Certificate(index, label, int(chosen) if sure else ABSTAIN, int(count), int(chosen), float(radius))
            for index, label, chosen, count, sure, radius in zip(
                indices, truth, top, votes, bound.certified, bound.radii, strict=True
            )
        ]

    def _votes(
        self, stored: Tensor, indices: list[int], sampling: Sampling, key: Key, rows: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if torch.is_autocast_enabled(stored.device.type):
            raise ModelError(
                "the network would run under autocast",
                where="certify",
                got="autocast is enabled",
                wanted="the precision that the network will be used in",
                fix="certify outside the autocast context",
            )
        with evaluation_mode(self.model), torch.inference_mode():
            classes = classes_of(self.model, stored[:1] / self.noise.levels)
            counter = VoteCounter(self.model, self.noise, classes, key, rows)
            top = counter.count("select", indices, stored, sampling.n0).argmax(dim=1)
            votes = counter.count("estimate", indices, stored, sampling.n).gather(1, top[:, None])[:, 0]
        return top.cpu().numpy(), votes.cpu().numpy()

    def _stored_levels(self, inputs: Tensor | NDArray[Any]) -> Tensor:
        parameter = next(self.model.parameters(), None)
        given = torch.as_tensor(
            inputs.astype(np.int32) if isinstance(inputs, np.ndarray) and inputs.dtype == np.uint16 else inputs
        )
        device = given.device if parameter is None else parameter.device
        if given.ndim == 0:
            raise DataError("one number is no batch of inputs", where="certify", got="no dimension", wanted="(inputs, *shape)")
        if given.is_floating_point():
            scaled = given.to(torch.float64) * self.noise.levels
            stored = scaled.round()
            # Float32 keeps k / levels to 2^-24 relative; anything further off was never a stored level.
            if not bool(((scaled - stored).abs() <= 1e-2).all()):
                raise DataError(
                    "inputs do not lie on the stored levels",
                    where="certify",
                    got="values between two levels (or NaN)",
                    wanted=f"multiples of 1/{self.noise.levels} in [0, 1], or integers 0..{self.noise.levels}",
                    fix="pass the inputs as they are stored, or name the right number of levels",
                )
        else:
            stored = given.to(torch.float64)
        if stored.numel() and not (float(stored.min()) >= 0 and float(stored.max()) <= self.noise.levels):
            raise DataError(
                "inputs lie outside the stored range",
                where="certify",
                got=f"{float(stored.min()):g}..{float(stored.max()):g}",
                wanted=f"0..{self.noise.levels} levels",
            )
        return stored.to(device=device, dtype=torch.float32)


def _check_numbering(inputs: int, labels: Sequence[int] | None, first_index: int, rows: int | None) -> None:
    if labels is not None and len(labels) != inputs:
        raise DataError(
            "labels and inputs differ in number",
            where="certify",
            got=f"{len(labels)} labels for {inputs} inputs",
            wanted="one label for each input, or none at all",
        )
    if any(label < 0 and label != UNKNOWN for label in labels or ()):
        raise DataError(
            "a label is no class",
            where="certify",
            got=min(label for label in labels or () if label != UNKNOWN),
            wanted=f"0 or more, or {UNKNOWN} for a label that is not known",
            fix="-1 stands for an abstention, which would then count as correct",
        )
    if first_index < 0:
        raise ConfigError("inputs are numbered from 0", where="first_index", got=first_index, wanted="0 or more")
    if rows is not None and rows < 1:
        raise ConfigError("a forward pass needs rows", where="rows", got=rows, wanted="at least 1")


def smooth(model: nn.Module, sigma: float, *, levels: int = 255) -> SmoothedClassifier:
    """Smooths any network over inputs of ``levels`` stored levels (255 for 8-bit images)."""
    return SmoothedClassifier(model, GridGaussian(sigma, levels))
