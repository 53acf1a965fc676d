"""The smoothed classifier and CERTIFY (Cohen, Rosenfeld and Kolter, ICML 2019), batched across inputs.

Guarantees
    For each input, with probability at least 1 - alpha over the noise: if CERTIFY does not abstain, the smoothed classifier
    (the class that the network most likely gives to the input plus noise) answers ``prediction`` for every storable input whose
    l2 distance is smaller than ``radius``. Proof: the class is chosen on n0 draws; the n estimation draws are fresh, so their
    votes are binomial and the Clopper-Pearson bound holds; tau covers the sampler; Cohen et al.'s theorem 1 gives
    sigma * Phi^-1(p). Radii are rounded down; tau also pays for the rounding of the float64 arithmetic.
    With a target radius the votes are looked at several times; the looks share alpha (``certify/looks.py``).
    The network of the claim is the one that is run: for speed it may be another form of the one given, equal up to rounding
    (``certify/lowering.py``).
    Tests: linear classifiers, whose radius is known exactly; planted bugs (votes taken for probabilities,
    selection draws reused, sigma off by 2 %, radii rounded up, all of alpha spent at every look).
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

from twinproof.certify.base_classifier import BaseClassifier, base_classifier, classes_of, rows_per_forward
from twinproof.certify.clopper_pearson import clopper_pearson_lower
from twinproof.certify.grid_gaussian import GridGaussian
from twinproof.certify.looks import Schedule
from twinproof.certify.row_threads import one_thread_inside
from twinproof.certify.shared_noise import SharedNetwork, SharedNoiseCounter, shared_network
from twinproof.certify.stopping import Estimate, StoppingRule, estimate
from twinproof.certify.votes import Counter, VoteCounter
from twinproof.errors import ConfigError, DataError, ModelError
from twinproof.layers.modes import evaluation_mode
from twinproof.randomness import Key
from twinproof.rounding import round_down
from twinproof.runs.certificates import ABSTAIN, UNKNOWN, Certificate, Look

NORM = "l2"
_MOST_DRAWS = 10**12


@dataclass(frozen=True)
class Sampling:
    """How many draws and how sure: n0 to choose the class, n to bound its probability, alpha the failure per input.

    With ``target_radius`` the question is whether the certified radius is at least that: n is then the most draws that an
    input can get, and it gets no more once the answer is known. Without one every input gets n draws: its radius still grows
    with the last of them.

    With ``shared_noise`` the inputs of a batch meet the same noise, which makes the first layer of the network nearly free.
    What is promised for each input stays the same; that one certificate fails is then no longer independent of the others.
    """

    n0: int = 100
    n: int = 10_000
    alpha: float = 0.001
    target_radius: float | None = None
    shared_noise: bool = False

    def __post_init__(self) -> None:
        for name in ("n0", "n"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} cannot be used", where=name, got=getattr(self, name), wanted="at least 1 draw")
        if not 0 < self.alpha < 1:
            raise ConfigError("alpha is no probability", where="alpha", got=self.alpha, wanted="0 < alpha < 1, e.g. 0.001")
        if self.target_radius is not None and not (self.target_radius > 0 and math.isfinite(self.target_radius)):
            raise ConfigError(
                "the target radius cannot be used", where="target_radius", got=self.target_radius, wanted="a finite number > 0"
            )

    @property
    def schedule(self) -> Schedule:
        """When the votes are looked at: once at the end, or more often with a target."""
        make = Schedule.single if self.target_radius is None else Schedule.doubling
        return make(self.n, self.alpha)

    def at(self, look: Look) -> Sampling:
        """The fixed procedure whose bound is the one of ``look``."""
        return replace(self, n=look.draws, alpha=look.alpha, target_radius=None)


@dataclass(frozen=True)
class Bound:
    """For each input, whether the bound exceeds one half, and the l2 radius it gives (rounded down, 0 where it does not)."""

    certified: NDArray[np.bool_]
    radii: NDArray[np.float64]


def bound_from_votes(votes: NDArray[Any], sampling: Sampling, sigma: float, tau: float) -> Bound:
    """What each number of votes certifies."""
    from scipy.special import ndtri

    # Many inputs have as many votes, and rounding down in decimals takes its time.
    numbers, which = np.unique(votes, return_inverse=True)
    probability = clopper_pearson_lower(numbers, sampling.n, sampling.alpha) - tau
    certified = probability > 0.5
    radii = np.array([round_down(float(radius)) for radius in sigma * ndtri(np.where(certified, probability, 0.5))])
    return Bound(certified[which], radii[which].astype(np.float64))


def largest_radius(sampling: Sampling, noise: GridGaussian, dimension: int) -> float:
    """The radius that n unanimous votes give, rounded down.

    An (n, alpha) that can never certify anything is refused, and so is a target radius that no votes reach.
    """
    target, sampling = sampling.target_radius, sampling.at(sampling.schedule.last)
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
    if target is not None and radius < target:
        raise ConfigError(
            "the target radius is out of reach",
            where="target_radius",
            got=target,
            wanted=f"at most {radius:.6f}, which unanimous votes give at n={sampling.n}",
            fix="raise n or sigma, or ask for a smaller radius",
        )
    return radius


def stopping_rule(sampling: Sampling, sigma: float, tau: float) -> StoppingRule:
    """At which votes an input of this sampling is decided."""
    target = sampling.target_radius
    if target is None:
        return StoppingRule.without_target(sampling.schedule)

    def reaches(votes: int, look: Look) -> bool:
        return float(bound_from_votes(np.array([votes]), sampling.at(look), sigma, tau).radii[0]) >= target

    return StoppingRule.for_target(sampling.schedule, reaches)


def bound_from_estimate(made: Estimate, sampling: Sampling, sigma: float, tau: float) -> Bound:
    """What each input's votes certify at the look at which it stopped, with that look's share of alpha."""
    certified, radii = np.zeros(len(made.votes), dtype=np.bool_), np.zeros(len(made.votes))
    for number, look in enumerate(sampling.schedule.looks):
        here = made.stopped == number
        bound = bound_from_votes(made.votes[here], sampling.at(look), sigma, tau)
        certified[here], radii[here] = bound.certified, bound.radii
    return Bound(certified, radii)


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
    """A network made robust by voting over Gaussian noise at its input; any ``nn.Module`` that maps [0, 1] inputs to scores.

    ``base`` is the network in the form in which it is run, where a caller has it already (``base_for``).
    """

    model: nn.Module
    noise: GridGaussian
    base: BaseClassifier | None = None

    def base_for(self, inputs: Tensor | NDArray[Any], sampling: Sampling, *, form: str | None = None) -> BaseClassifier:
        """The network as it is run on such inputs, for callers that certify in several calls: found once, in the same form."""
        stored = self._stored_levels(inputs)
        return self._base(stored, rows_per_forward(stored[0].numel(), stored.device), sampling, form)

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
        rule = stopping_rule(sampling, self.noise.sigma, self.noise.tau(dimension))
        top, made = self._votes(stored, indices, sampling, rule, key or Key.from_system(), rows)
        bound = bound_from_estimate(made, sampling, self.noise.sigma, self.noise.tau(dimension))
        draws = np.array([look.draws for look in rule.schedule.looks])[made.stopped]
        truth = [UNKNOWN] * len(indices) if labels is None else [int(label) for label in labels]
        return [
            Certificate(index, label, int(chosen) if sure else ABSTAIN, int(count), int(chosen), float(radius), int(drawn))
            for index, label, chosen, count, sure, radius, drawn in zip(
                indices, truth, top, made.votes, bound.certified, bound.radii, draws, strict=True
            )
        ]

    def _votes(
        self, stored: Tensor, indices: list[int], sampling: Sampling, rule: StoppingRule, key: Key, rows: int | None
    ) -> tuple[NDArray[np.int64], Estimate]:
        if torch.is_autocast_enabled(stored.device.type):
            raise ModelError(
                "the network would run under autocast",
                where="certify",
                got="autocast is enabled",
                wanted="the precision that the network will be used in",
                fix="certify outside the autocast context",
            )
        rows = rows or rows_per_forward(stored[0].numel(), stored.device)
        base = self.base
        if base is None or isinstance(base.network, SharedNetwork) != sampling.shared_noise:
            base = self._base(stored, rows, sampling, None)
        counter = self._counter(base, key, rows)
        with evaluation_mode(self.model), torch.inference_mode():
            top = counter.count("select", indices, stored, sampling.n0).argmax(dim=1)
            return top.cpu().numpy(), estimate(counter, rule, indices, stored, top)

    def _base(self, stored: Tensor, rows: int, sampling: Sampling, form: str | None) -> BaseClassifier:
        example = stored[:1] / self.noise.levels
        with evaluation_mode(self.model), torch.inference_mode():
            if not sampling.shared_noise:
                return base_classifier(self.model, example, rows, form=form)
            classes = classes_of(self.model, example)
            shape, device = tuple(stored.shape[1:]), stored.device
            with one_thread_inside():
                network = shared_network(self.model, shape, self.noise, device, rows, form=form)
            return BaseClassifier(network, classes, network.arithmetic, network.form)

    def _counter(self, base: BaseClassifier, key: Key, rows: int) -> Counter:
        if isinstance(base.network, SharedNetwork):
            return SharedNoiseCounter(base.network, self.noise, key, rows)
        return VoteCounter(base.network, self.noise, base.classes, key, rows)

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
