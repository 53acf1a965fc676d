"""Robustness bounds: from bounds on two expected scores to a distance within which the answer cannot change.

A layer that is (epsilon, delta)-private with respect to its input keeps every expected score p within e^epsilon p + delta, in
both directions. Everything here is rounded so that a distance is never too long.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import StrEnum
from fractions import Fraction
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from twinproof import checks
from twinproof.errors import ConfigError
from twinproof.guarantee import Status
from twinproof.layers.noise import Law
from twinproof.privacy.accounting import check_delta
from twinproof.privacy.mechanisms import LARGEST_EPSILON, classic_gaussian_sigma, extended_gaussian_sigma, least_float

Floats = NDArray[np.float64]

# A dozen roundings of 2**-53 each in the ratio move its logarithm by less than 2**-49; the other share pays for log itself.
_MARGIN = 2.0**-49
_TINY = 1e-300


def lowered_log(ratio: Floats) -> Floats:
    """ln(ratio), never above the logarithm of the real number that ``ratio`` was computed for.

    ``ratio`` must come of at most twelve additions, products, quotients and square roots of positive numbers: each errs by at
    most 2**-53 of its result and none cancels, so that the logarithm errs by less than 2**-49. Assumed: log errs by less than
    2**-49 of its value.
    """
    logarithm = np.log(ratio)
    return np.asarray(logarithm - _MARGIN * (1 + np.minimum(np.abs(logarithm), 1000.0)), dtype=np.float64)


def never_tiny(high: Floats) -> Floats:
    """``high``, raised to 1e-300 where it is smaller but not 0, since quotients by smaller numbers overflow."""
    return np.where(high > 0, np.maximum(high, _TINY), 0.0)


class Charge(StrEnum):
    """What a change of the input is charged, which decides the norm that a reach is divided by."""

    PROVEN = "proven"  # the least that is proven for the noise that is drawn
    COMPOSED = "composed"  # the sum of what each of several noises charges: sound, and more
    CLAIMED = "claimed"  # what the bound's paper says, true or not


class RobustnessBound(ABC):
    """How far the noisy layer may be shifted before the answer can change, given bounds on two expected scores.

    The scores are those of a function with values in [0, 1] behind noise of law ``law`` and deviation 1 (Laplace: scale 1).

    Guarantees
        Where the top class's expected score is at least ``low`` and every other one's at most ``high``, the top class stays on
        top under every shift smaller than ``reach(low, high)`` in l2 (Gaussian) or l1 (Laplace) - for a bound whose ``status``
        is proven, by its ``theorem``. The reach is 0 where low <= high or one of them is NaN, never negative, and up to
        rounding grows with ``low`` and falls with ``high``. Each pair is treated alone.
    """

    name: ClassVar[str]
    law: ClassVar[Law]
    theorem: ClassVar[str]
    status: ClassVar[Status] = Status.PROVEN
    reason: ClassVar[str] = ""  # why the status is not proven
    charge: ClassVar[Charge] = Charge.PROVEN
    place: ClassVar[str | None] = None  # where the noise has to be, for a bound of one place alone

    @final
    def reach(self, low: ArrayLike, high: ArrayLike) -> Floats:
        """The largest shift, in deviations, below which the answer cannot change; elementwise, rounded down."""
        # A confidence bound less tau may leave [0, 1]; brought back to it, it says the same.
        clipped = (np.clip(np.asarray(value, dtype=np.float64), 0.0, 1.0) for value in (low, high))
        lows, highs = np.broadcast_arrays(*clipped)
        result, decided = np.zeros(lows.shape, dtype=np.float64), lows > highs
        # Inputs with as many votes have the same pair, and a bound may have to search.
        pairs = np.stack((lows[decided], highs[decided]), axis=1)
        different, which = np.unique(pairs, axis=0, return_inverse=True)
        reached = np.maximum(self._reach(different[:, 0], different[:, 1]), 0.0)
        result[decided] = reached[which.reshape(-1)]
        return result

    @abstractmethod
    def _reach(self, low: Floats, high: Floats) -> Floats:
        """The reach of different pairs with 1 >= low > high >= 0."""


def largest_epsilon(low: Floats, high: Floats, delta: Floats) -> Floats:
    """The supremum of the epsilons with low > e^(2 epsilon) high + (1 + e^epsilon) delta, rounded down; 0 where there is none.

    Proof: the top class keeps more than (low - delta) / e^epsilon, every other one gets at most e^epsilon high + delta. With
    y = e^epsilon that is high y^2 + delta y + delta - low < 0; the left side grows for y > 0 and has the root
    2 (low - delta) / (delta + sqrt(delta^2 + 4 high (low - delta))), a form in which nothing cancels.
    """
    rest = np.maximum(low - delta, np.finfo(np.float64).tiny)
    root = 2 * rest / (delta + np.sqrt(delta * delta + 4 * high * rest))
    return np.where(low - high > 2 * delta, np.maximum(lowered_log(root), 0.0), 0.0)


def largest_complement_epsilon(low: Floats, high: Floats, delta: Floats) -> Floats:
    """The supremum of the epsilons with e^epsilon (1 - low + high) < 1 - 2 delta, rounded down; 0 where there is none.

    Proof: applied to the complement, privacy says that the top class loses at most e^epsilon (1 - low) + delta to the others;
    so it keeps 1 less that, and every other one gets at most e^epsilon high + delta.
    """
    rest = np.maximum(1 - 2 * delta, np.finfo(np.float64).tiny)
    return np.maximum(lowered_log(rest / np.maximum((1 - low) + high, np.finfo(np.float64).tiny)), 0.0)


SMALLEST_DELTA = 1e-30
_GRID = 96
# Each golden step keeps 0.618 of the interval: from two cells of the grid (about 1.5 in ln delta) to the last bits.
_STEPS = 80
_GOLDEN = (math.sqrt(5) - 1) / 2


def best_delta(height: Callable[[Floats], Floats], largest: Floats) -> Floats:
    """For each pair a delta in [1e-30, largest) of great ``height``: a fixed grid in ln delta, then golden section.

    No proof needs it to be the best: every delta is sound, and a poor one only shortens the reach.
    """
    first = np.full_like(largest, math.log(SMALLEST_DELTA))
    last = np.maximum(np.log(np.maximum(largest, SMALLEST_DELTA)), first)
    cell = (last - first) / _GRID
    places = first + cell * np.arange(_GRID)[:, None]
    heights = np.stack([height(np.exp(place)) for place in places])
    peak = np.take_along_axis(places, heights.argmax(axis=0)[None], axis=0)[0]
    left, right = np.maximum(peak - cell, first), np.minimum(peak + cell, last)
    for _ in range(_STEPS):
        step = _GOLDEN * (right - left)
        near, far = right - step, left + step
        climbs = height(np.exp(far)) > height(np.exp(near))
        left, right = np.where(climbs, near, left), np.where(climbs, right, far)
    found = (left + right) / 2
    # The grid's own best point stays if the section, on a curve with several peaks, ended below it.
    better = height(np.exp(found)) >= heights.max(axis=0)
    return np.asarray(np.exp(np.where(better, found, peak)), dtype=np.float64)


Condition = Callable[[Floats, Floats, Floats], Floats]
# 1 / sigma takes one rounding more than the closed form of sigma was rounded up for.
_DOWNWARDS = 1 - 2.0**-51


class OutputPrivacyBound(RobustnessBound):
    """1 / g(epsilon*(delta), delta), g being the noise that a calibration asks for at sensitivity 1.

    ``delta`` fixes the free parameter, for comparison with what papers print; without it the best one is searched for.

    Proof, if ``sigma`` is an (epsilon, delta)-private deviation at sensitivity 1: noise of deviation 1 under shifts of length m
    is noise of deviation 1 / m at sensitivity 1, which is private where 1 / m >= g(epsilon, delta). A condition says up to
    which epsilon that keeps the top class on top: epsilon*(delta). As g falls in epsilon, m = 1 / g(epsilon*(delta), delta) is
    the most that this delta gives. Each delta alone proves its own m. epsilon* is rounded down, g up.
    """

    law: ClassVar[Law] = Law.GAUSSIAN
    conditions: ClassVar[tuple[Condition, ...]] = (largest_epsilon,)

    def __init__(self, *, delta: float | None = None) -> None:
        if delta is not None:
            check_delta(delta)
        self.delta = delta

    @abstractmethod
    def sigma(self, epsilon: float, delta: float) -> float:
        """A private deviation at sensitivity 1 and an epsilon above 0, rounded up: the closed form that is proven."""

    @abstractmethod
    def height(self, epsilon: Floats, delta: Floats) -> Floats:
        """1 / sigma for many pairs at once, to guide the search only; 0 where epsilon is 0."""

    def _reach(self, low: Floats, high: Floats) -> Floats:
        reached = [self._reach_by(condition, low, high) for condition in self.conditions]
        return np.asarray(np.max(reached, axis=0), dtype=np.float64)

    def _reach_by(self, condition: Condition, low: Floats, high: Floats) -> Floats:
        def heights(delta: Floats) -> Floats:
            return self.height(condition(low, high, delta), delta)

        delta = best_delta(heights, (low - high) / 2) if self.delta is None else np.full_like(low, self.delta)
        epsilon = condition(low, high, delta)
        reached = [self._inverse(float(e), float(d)) if e > 0 else 0.0 for e, d in zip(epsilon, delta, strict=True)]
        return np.asarray(reached, dtype=np.float64)

    def _inverse(self, epsilon: float, delta: float) -> float:
        """1 / sigma, rounded down."""
        return _DOWNWARDS / self.sigma(epsilon, delta)


class PixelDPGaussian(OutputPrivacyBound):
    """Eq. 4 with the classic Gaussian mechanism, whose theorem ends at epsilon 1; a larger epsilon* counts as 1."""

    name = "pixeldp"
    theorem = "Lecuyer et al. 2019, Proposition 1, with Dwork and Roth 2014, Theorem A.1 (epsilon <= 1)"

    def sigma(self, epsilon: float, delta: float) -> float:
        """The classic mechanism's deviation."""
        return classic_gaussian_sigma(min(epsilon, LARGEST_EPSILON), delta)

    def height(self, epsilon: Floats, delta: Floats) -> Floats:
        """One over the classic formula."""
        return np.asarray(np.minimum(epsilon, LARGEST_EPSILON) / np.sqrt(2 * np.log(1.25 / delta)), dtype=np.float64)


class PixelDPLaplace(RobustnessBound):
    """ln(low / high) / 2: Eq. 4 with the Laplace mechanism, which is (epsilon, 0)-private under shifts of l1 length epsilon.

    Never above ``PureEpsilon``, whose first term it is.
    """

    name = "pixeldp"
    law = Law.LAPLACE
    theorem = "Lecuyer et al. 2019, Proposition 1, with the Laplace mechanism (delta = 0)"

    def _reach(self, low: Floats, high: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            return lowered_log(low / never_tiny(high)) / 2


class HGM(OutputPrivacyBound):
    """Eq. 4 with the Extended Gaussian Mechanism; whitening turns the heterogeneous one into it."""

    name = "hgm"
    theorem = "Phan et al. 2019, Eq. 4 and Theorem 3 (in the whitened layer: Theorem 2)"

    def sigma(self, epsilon: float, delta: float) -> float:
        """The deviation of Theorem 2."""
        return extended_gaussian_sigma(epsilon, delta)

    def height(self, epsilon: Floats, delta: Floats) -> Floats:
        """One over Theorem 2's formula, for the deltas that are searched (below 1/2)."""
        s = np.log(math.sqrt(2 / math.pi) / delta)
        return np.asarray(math.sqrt(2) * epsilon / (np.sqrt(s) + np.sqrt(s + epsilon)), dtype=np.float64)


class HGMComplement(HGM):
    """The better of ``HGM`` and the same mechanism under the condition on the complement: never smaller."""

    name = "hgm-complement"
    theorem = "Phan et al. 2019, Theorem 3, with Eq. 4 or its form for the complement, whichever reaches farther"
    conditions = (largest_epsilon, largest_complement_epsilon)


class TightGaussian(RobustnessBound):
    """(Phi^-1(low) - Phi^-1(high)) / 2: for votes (Cohen et al. 2019) and for expected scores alike.

    Proof: by the lemma of Neyman and Pearson, of all functions into [0, 1] with an expected score of p at x, a halfspace loses
    most when x moves by s; it keeps Phi(Phi^-1(p) - s). So the top class keeps at least Phi(Phi^-1(low) - s), every other one
    gets at most Phi(Phi^-1(high) + s), and the first is larger while s is below the bound. Two halfspaces reach it.
    Rounding: with high = 1 - low the result is Phi^-1(low) to the last bit, as ndtri is odd around 1/2. Nothing is subtracted
    for what ndtri errs (below 2**-48 of its value): callers lower ``low`` and raise ``high`` by tau, of which 2**-36 is for
    arithmetic, and Phi^-1 rises at least 2.5 times as fast as p.
    """

    name = "tight"
    law = Law.GAUSSIAN
    theorem = "Cohen, Rosenfeld and Kolter 2019, Theorem 1 (Neyman-Pearson), in the whitened layer; tight"

    def _reach(self, low: Floats, high: Floats) -> Floats:
        from scipy.special import ndtri

        return np.asarray((ndtri(low) - ndtri(high)) / 2, dtype=np.float64)


class PureEpsilon(RobustnessBound):
    """max(ln(low / high) / 2, -ln(1 - low + high)), in l1: every place of the noise, every norm, tight in few of them.

    Proof: a shift by s in l1 changes the noise's density by a factor of at most e^s, so that every score p and its complement
    1 - p stay within that factor. From the scores: the top class keeps at least e^-s low, every other one gets at most
    e^s high. From the complement: the top class keeps at least 1 - e^s (1 - low). Either argument alone is enough. For
    high = 1 - low <= 1/2 a halfspace along an axis reaches the second.
    """

    name = "pure-epsilon"
    law = Law.LAPLACE
    theorem = "Laplace noise keeps a score and its complement within e^s under a shift of l1 length s"

    def _reach(self, low: Floats, high: Floats) -> Floats:
        # A class that never wins is out of reach of every shift: infinity is the right answer to high = 0.
        high = never_tiny(high)
        with np.errstate(divide="ignore"):
            scores, complement = lowered_log(low / high) / 2, lowered_log(1 / ((1 - low) + high))
        return np.maximum(scores, complement)


class TightLaplace(PureEpsilon):
    """``PureEpsilon`` where it is tight: in l1, with noise at the input. Runs of formats 1 to 3 call it so everywhere."""

    name = "tight"


class BestLaplace(PureEpsilon):
    """The longest radius of those that hold: ``PureEpsilon``, ``GaussianShift``, and ``EqualShifts`` in linf at the input.

    The ways of the last two to a radius stand beside this one's (``RadiusRule.others``): each divides a reach by a norm of its
    own. All of them speak of the same bounds on the same scores, so that the longest holds wherever those do.
    """

    name = "best"
    theorem = (
        "the longest radius by three trade-offs of Laplace noise: within e^s under a shift of l1 length s; at worst "
        "sqrt(pi/2) s-Gaussian under one of l2 length s; exact where every coordinate of the input moves alike (linf)"
    )


class Composition(PixelDPLaplace):
    """ln(low / high) / 2, divided by the *sum* of what each noise charges for a change: kappa phi / (kappa + phi).

    Sound, and at most half of what one of the noises gives alone: one pass is charged as one for each noise. With one noise it
    is ``PixelDPLaplace``.
    """

    name = "composition"
    theorem = "Phan et al. 2020, Theorem 5 and Corollary 1 (delta = 0): epsilons of the mechanisms add up"
    charge = Charge.COMPOSED


def is_robust(
    size: float, low: float, high: float, sigma: float, operator_norm: float, slack: float, bound: RobustnessBound
) -> bool:
    """Whether no change smaller than ``size`` can change the answer: size * operator_norm + slack <= sigma * reach(low, high).

    ``sigma`` is the noise's deviation in units of the whitened layer, ``operator_norm`` how far a change of size 1 moves that
    layer, ``slack`` what rounding can move it besides. The comparison is made in exact fractions, and an answer that is robust
    at a size is robust at every smaller one.
    """
    checks.positive(sigma=sigma)
    checks.positive_value("operator norm", operator_norm)
    for name, value in (("size", size), ("slack", slack)):
        if not (value >= 0 and math.isfinite(value)):
            raise ConfigError(f"the {name} cannot be used", where=name, got=value, wanted="a finite number, 0 or above")
    return _covers(size, float(bound.reach(low, high)), sigma, operator_norm, slack)


def largest_size(low: float, high: float, sigma: float, operator_norm: float, slack: float, bound: RobustnessBound) -> float:
    """mu_max: the largest float size at which ``is_robust`` is true; 0 where none is, infinity where every shift is allowed.

    Found by the search of ``least_float`` on the exact condition. Sizes below the smallest normal float count as 0.
    """
    if not is_robust(sys.float_info.min, low, high, sigma, operator_norm, slack, bound):
        return 0.0
    reach = float(bound.reach(low, high))
    if math.isinf(reach):
        return math.inf
    start = max(sigma * reach / operator_norm, 2 * sys.float_info.min)
    first_failure = least_float(lambda size: not _covers(size, reach, sigma, operator_norm, slack), start, "size")
    return math.nextafter(first_failure, 0.0)


def _covers(size: float, reach: float, sigma: float, operator_norm: float, slack: float) -> bool:
    if math.isinf(reach):
        return True
    moved = Fraction(size) * Fraction(operator_norm) + Fraction(slack)
    # An abstention is robust at no size, not even one that rounding alone would not notice.
    return reach > 0 and moved <= Fraction(sigma) * Fraction(reach)
