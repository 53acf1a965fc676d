"""Confidence bounds on expected scores: exact for votes, and two for scores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from enum import StrEnum
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from twinproof.certification.bounds import Floats
from twinproof.errors import ConfigError, DataError

Whole = NDArray[np.int64]
_UPWARDS = Context(prec=10, rounding=ROUND_CEILING)


def few_digits_above(value: float) -> float:
    """The float nearest to the smallest decimal of ten significant digits that is not below ``value``.

    It is not below ``value`` either, since rounding to the nearest float is monotone and keeps ``value`` itself.
    """
    return float(_UPWARDS.create_decimal_from_float(value))


def clopper_pearson_lower(votes: ArrayLike, draws: int, alpha: float) -> Floats:
    """The largest p that ``votes`` of ``draws`` independent draws rule out from below, at level ``alpha``.

    P(bound > p) <= alpha for every p and every number of draws (Clopper and Pearson 1934). The bound is the alpha quantile of
    Beta(votes, draws - votes + 1), 0 without votes.
    """
    count = np.asarray(votes, dtype=np.float64)
    bound = betaincinv(np.maximum(count, 1.0), draws - count + 1.0, alpha)
    return np.where(count > 0, bound, 0.0)


def check_alpha(alpha: float) -> None:
    if not 0 < alpha < 1:
        raise ConfigError("alpha is not a probability", where="alpha", got=alpha, wanted="0 < alpha < 1, e.g. 0.001")


@dataclass(frozen=True)
class Evidence:
    """For each input, sums over ``draws`` draws of scores in whole units of 1 / ``resolution`` (1 for votes).

    ``total`` and ``squares`` sum the top class's scores and their squares; ``other`` and ``other_squares`` those of the class
    with the largest upper bound among the others (zeros where they are not needed). Sums that cannot come from so many scores
    between 0 and 1 are refused, in exact arithmetic.
    """

    draws: int
    resolution: int
    total: Whole
    squares: Whole
    other: Whole
    other_squares: Whole

    def __post_init__(self) -> None:
        for name in ("draws", "resolution"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} cannot be used", where=name, got=getattr(self, name), wanted="at least 1")
        if self.draws * self.resolution**2 >= 2**63:
            raise ConfigError(
                "so many draws overflow the sums of squares",
                where="draws",
                got=self.draws,
                wanted=f"fewer than {2**63 // self.resolution**2} at resolution {self.resolution}",
            )
        for name in ("total", "squares", "other", "other_squares"):
            values: Whole = getattr(self, name)
            if values.dtype != np.int64 or values.shape != self.total.shape:
                raise DataError(
                    "the sums of the draws do not fit together",
                    where=name,
                    got=f"{values.dtype} of shape {values.shape}",
                    wanted=f"int64 of shape {self.total.shape}",
                )
        self._check_sums("total", self.total, self.squares)
        self._check_sums("other", self.other, self.other_squares)

    @classmethod
    def of_votes(cls, draws: int, votes: Whole, other: Whole | None = None) -> Evidence:
        """Votes for the top class, and for the strongest other class where they were counted."""
        others = np.zeros_like(votes) if other is None else other
        return cls(draws, 1, votes, votes, others, others)

    def _check_sums(self, name: str, total: Whole, squares: Whole) -> None:
        """Values v in 0..resolution have v^2 <= resolution v, and (Cauchy-Schwarz) the square of their sum is <= n squares."""
        possible = (total >= 0) & (total <= self.draws * self.resolution) & (squares <= total * self.resolution)
        possible &= np.asarray(spread_of(total, squares, self.draws) >= 0, dtype=np.bool_)
        if not possible.all():
            at = int(np.flatnonzero(~possible.reshape(-1))[0])
            raise DataError(
                "no scores between 0 and 1 have these sums",
                where=f"{name}, input {at}",
                got=f"sum {total.reshape(-1)[at]}, squares {squares.reshape(-1)[at]}",
                wanted=f"those of {self.draws} draws in units of 1/{self.resolution}",
            )


def spread_of(total: Whole, squares: Whole, draws: int) -> NDArray[np.object_]:
    """draws * squares - total^2, exactly, as Python's whole numbers: n (n - 1) times the unbiased variance in units."""
    exact_total, exact_squares = total.astype(np.object_), squares.astype(np.object_)
    return np.asarray(draws * exact_squares - exact_total * exact_total, dtype=np.object_)


class RunnerUp(StrEnum):
    """How the classes besides the top one are bounded."""

    COMPLEMENT = "complement"  # by what the top class leaves: one bound, all of alpha
    UNION = "union"  # by bounds of their own as well: one lower, classes - 1 upper ones, alpha / classes each

    def level(self, alpha: float, classes: int) -> float:
        """The share of alpha of each single bound."""
        return alpha if self is RunnerUp.COMPLEMENT else alpha / classes


class Confidence(ABC):
    """One-sided confidence bounds on the mean of independent scores in [0, 1].

    ``lower`` and ``upper`` each fail with probability at most ``level``, for every distribution of the scores and every number
    of draws. Arithmetic errs by far less than the 2**-36 that every tau holds for it (``after_tau``).
    """

    name: ClassVar[str]
    theorem: ClassVar[str]
    votes_only: ClassVar[bool] = False

    @abstractmethod
    def lower(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """Below the mean score, except with probability ``level``; in [0, 1]."""

    @abstractmethod
    def upper(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """Above the mean score, except with probability ``level``; in [0, 1]."""

    @final
    def bounds(self, evidence: Evidence, alpha: float, classes: int, runner_up: RunnerUp) -> tuple[Floats, Floats]:
        """(low, high): below the top class's mean score, above every other class's; before tau.

        Both hold at once for an input, except with probability ``alpha``, where the top class was chosen without these draws.
        Complement: the scores of a draw add up to at most 1, so that high = 1 - low holds whenever low does. Union: one lower
        and ``classes`` - 1 upper bounds at alpha / classes each hold at once; the largest of the upper ones is a maximum over
        all of them, so that choosing its class on these draws costs nothing more.
        """
        check_alpha(alpha)
        if classes < 2:
            raise ConfigError("the number of classes cannot be used", where="classes", got=classes, wanted="at least 2")
        if self.votes_only and evidence.resolution != 1:
            raise ConfigError(
                f"{self.name} bounds are for votes: the mean of scores is not binomial",
                where="confidence",
                got=f"scores in units of 1/{evidence.resolution}",
                wanted="votes",
                fix="use hoeffding or empirical-bernstein for scores",
            )
        draws, resolution = evidence.draws, evidence.resolution
        level = runner_up.level(alpha, classes)
        low = self.lower(evidence.total, evidence.squares, draws, resolution, level)
        if runner_up is RunnerUp.COMPLEMENT:
            return low, 1 - low
        return low, np.minimum(self.upper(evidence.other, evidence.other_squares, draws, resolution, level), 1 - low)

    @final
    def evidence(
        self, sums: Whole, squares: Whole, top: Whole, *, draws: int, resolution: int, alpha: float, runner_up: RunnerUp
    ) -> Evidence:
        """The evidence of (inputs, classes) sums for the chosen classes, with the strongest other class found by its bound."""
        inputs, classes = np.arange(len(sums)), sums.shape[1]
        own, own_squares = sums[inputs, top], squares[inputs, top]
        if runner_up is RunnerUp.COMPLEMENT:
            return Evidence(draws, resolution, own, own_squares, np.zeros_like(own), np.zeros_like(own))
        uppers = self.upper(sums, squares, draws, resolution, runner_up.level(alpha, classes))
        uppers[inputs, top] = -1.0
        other = uppers.argmax(axis=1)
        return Evidence(draws, resolution, own, own_squares, sums[inputs, other], squares[inputs, other])


def after_tau(low: Floats, high: Floats, tau: float) -> tuple[Floats, Floats]:
    """The bounds for noise that differs from the law by a total variation of at most ``tau``, which moves a score by tau.

    A ``high`` that is the complement of ``low`` stays exactly that: p = low - tau then gives sigma Phi^-1(p) to the last bit.
    """
    lowered = low - tau
    return lowered, np.minimum(np.where(high == 1 - low, 1 - lowered, high + tau), 1.0)


class ClopperPearson(Confidence):
    """The exact bound on a probability, from votes: the best there is for them."""

    name = "clopper-pearson"
    theorem = "Clopper and Pearson 1934 (exact binomial tail)"
    votes_only = True

    def lower(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """The ``level`` quantile of Beta(votes, draws - votes + 1)."""
        # Inputs share their numbers of votes, and a quantile of the beta distribution takes its time.
        votes, which = np.unique(total, return_inverse=True)
        return clopper_pearson_lower(votes, draws, level)[which.reshape(total.shape)]

    def upper(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """One minus the lower bound on the votes for everybody else."""
        return np.asarray(1 - self.lower(draws - total, squares, draws, resolution, level), dtype=np.float64)


class _SymmetricBound(Confidence):
    """The mean of the draws, minus or plus a margin."""

    @abstractmethod
    def margin(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats | float:
        """How far the mean of the draws can lie from the mean score on one side, except with probability ``level``."""

    def lower(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        return np.maximum(total / (draws * resolution) - self.margin(total, squares, draws, resolution, level), 0.0)

    def upper(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        return np.minimum(total / (draws * resolution) + self.margin(total, squares, draws, resolution, level), 1.0)


class Hoeffding(_SymmetricBound):
    """mean -+ sqrt(ln(1 / level) / (2 n)): the number of draws alone decides the margin."""

    name = "hoeffding"
    theorem = "Hoeffding 1963, Theorem 2"

    def margin(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> float:
        return math.sqrt(-math.log(level) / (2 * draws))


class EmpiricalBernstein(_SymmetricBound):
    """mean -+ (sqrt(2 V ln(2 / level) / n) + 7 ln(2 / level) / (3 (n - 1))), V the unbiased sample variance.

    Better than Hoeffding where the scores vary little. The 2 in the logarithm pays for the variance being an estimate.
    """

    name = "empirical-bernstein"
    theorem = "Maurer and Pontil 2009, Theorem 4 (empirical Bernstein)"

    def margin(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """By the variance of each input; 1 from a single draw, which shows none."""
        if draws < 2:
            return np.ones(total.shape, dtype=np.float64)
        logarithm = math.log(2) - math.log(level)
        # The variance of nearly equal scores is a small difference of large numbers, and its root would show the rounding.
        variance = spread_of(total, squares, draws).astype(np.float64) / (draws * (draws - 1) * resolution**2)
        return np.sqrt(2 * variance * logarithm / draws) + 7 * logarithm / (3 * (draws - 1))


_BY_NAME: Mapping[str, Confidence] = {made.name: made for made in (ClopperPearson(), Hoeffding(), EmpiricalBernstein())}
CONFIDENCE_NAMES: tuple[str, ...] = tuple(_BY_NAME)


def find_confidence(name: str) -> Confidence:
    """The confidence bound of that name; the error lists what there is."""
    if name not in _BY_NAME:
        raise ConfigError(
            "there is no such confidence bound", where="confidence", got=name, wanted=f"one of: {', '.join(CONFIDENCE_NAMES)}"
        )
    return _BY_NAME[name]
