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

from twinproof.certification.bounds import Floats
from twinproof.errors import ConfigError, DataError


def clopper_pearson_lower(votes: ArrayLike, draws: int, alpha: float) -> NDArray[np.float64]:
    """The largest p that ``votes`` of ``draws`` independent draws rule out from below, at level ``alpha``.

    Guarantees
        P(bound > p) <= alpha for every p and every number of draws (Clopper and Pearson 1934). The bound is the alpha
        quantile of Beta(votes, draws - votes + 1), 0 without votes. Test: exact enumeration over a grid of p and n.
    """
    from scipy.special import betaincinv

    count = np.asarray(votes, dtype=np.float64)
    bound = betaincinv(np.maximum(count, 1.0), draws - count + 1.0, alpha)
    return np.where(count > 0, bound, 0.0)


_DIGITS = 10
_UPWARDS = Context(prec=_DIGITS, rounding=ROUND_CEILING)


def few_digits_above(value: float) -> float:
    """The smallest decimal of ten significant digits that is not below ``value``, as the float nearest to it.

    Guarantees
        Not below ``value``: rounding a decimal to the nearest float is monotone and keeps ``value`` itself. So a bound stays a
        bound, and an interrupted certification finds the number that it wrote down.
    """
    return float(_UPWARDS.create_decimal_from_float(value))


Whole = NDArray[np.int64]
VOTES = 1  # the resolution of votes: a draw counts 0 or 1


@dataclass(frozen=True)
class Evidence:
    """For each input, sums over ``draws`` draws of scores in whole units of 1 / ``resolution`` (1 for votes).

    ``total`` and ``squares`` sum the top class's scores and their squares; ``other`` and ``other_squares`` those of the class
    with the largest upper bound among the others (zeros where nobody will ask).

    Guarantees
        The sums can come from that many scores between 0 and 1: checked when made, in exact arithmetic. None overflows.
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
        sums: Mapping[str, Whole] = {name: getattr(self, name) for name in ("total", "squares", "other", "other_squares")}
        for name, values in sums.items():
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
        return cls(draws, VOTES, votes, votes, others, others)

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

    Guarantees
        ``lower`` and ``upper`` each fail with probability at most ``level``, for every distribution of the scores and every
        number of draws. Arithmetic errs by far less than the 2**-36 that every tau holds for it (``after_tau``).
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

        Guarantees
            Both hold at once for an input, except with probability ``alpha``, where the top class was chosen without these
            draws. Complement: the scores of a draw add up to at most 1, so that high = 1 - low holds whenever low does. Union:
            one lower and ``classes`` - 1 upper bounds at alpha / classes each hold at once; that of the class with the largest
            upper bound is the maximum of them, so that choosing it on these draws costs nothing more.
        """
        _check(alpha, classes)
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
    """The bounds for noise that differs from the law by a total variation of at most ``tau``.

    Guarantees
        Each expected score moves by at most tau, so that low - tau and high + tau hold for the law itself. A ``high`` that is
        the complement of ``low`` stays exactly that: then p = low - tau gives the radius sigma Phi^-1(p) to the last bit.
    """
    lowered = low - tau
    return lowered, np.minimum(np.where(high == 1 - low, 1 - lowered, high + tau), 1.0)


def _check(alpha: float, classes: int) -> None:
    if not 0 < alpha < 1:
        raise ConfigError("alpha is no probability", where="alpha", got=alpha, wanted="0 < alpha < 1, e.g. 0.001")
    if classes < 2:
        raise ConfigError("the number of classes cannot be used", where="classes", got=classes, wanted="at least 2")


class ClopperPearson(Confidence):
    """The exact bound on a probability, from votes (Clopper and Pearson 1934): the best there is for them.

    Guarantees
        Those of ``clopper_pearson_lower``; the upper bound is one minus the lower bound on the votes for everybody else.
    """

    name = "clopper-pearson"
    theorem = "Clopper and Pearson 1934 (exact binomial tail)"
    votes_only = True

    def lower(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """The ``level`` quantile of Beta(votes, draws - votes + 1)."""
        # Inputs share their numbers of votes, and a quantile of the beta distribution takes its time.
        votes, which = np.unique(total, return_inverse=True)
        return clopper_pearson_lower(votes, draws, level)[which.reshape(total.shape)]

    def upper(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """One minus the lower bound on the complement."""
        return np.asarray(1 - self.lower(draws - total, squares, draws, resolution, level), dtype=np.float64)


class Hoeffding(Confidence):
    """mean -+ sqrt(ln(1 / level) / (2 n)) (Hoeffding 1963): the draws' number alone decides how sure it is."""

    name = "hoeffding"
    theorem = "Hoeffding 1963, Theorem 2"

    def lower(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """The mean less the margin."""
        return np.maximum(_mean(total, draws, resolution) - _hoeffding_margin(draws, level), 0.0)

    def upper(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """The mean plus the margin."""
        return np.minimum(_mean(total, draws, resolution) + _hoeffding_margin(draws, level), 1.0)


class EmpiricalBernstein(Confidence):
    """mean -+ (sqrt(2 V ln(2 / level) / n) + 7 ln(2 / level) / (3 (n - 1))), V the unbiased sample variance.

    Better than Hoeffding where the scores vary little. The 2 in the logarithm pays for the variance being an estimate.
    """

    name = "empirical-bernstein"
    theorem = "Maurer and Pontil 2009, Theorem 4 (empirical Bernstein)"

    def lower(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """The mean less the margin; 0 from a single draw, which shows no variance."""
        return np.maximum(_mean(total, draws, resolution) - _bernstein_margin(total, squares, draws, resolution, level), 0.0)

    def upper(self, total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> Floats:
        """The mean plus the margin; 1 from a single draw."""
        return np.minimum(_mean(total, draws, resolution) + _bernstein_margin(total, squares, draws, resolution, level), 1.0)


_ALL: tuple[Confidence, ...] = (ClopperPearson(), Hoeffding(), EmpiricalBernstein())
_BY_NAME: Mapping[str, Confidence] = {confidence.name: confidence for confidence in _ALL}
CONFIDENCE_NAMES: tuple[str, ...] = tuple(_BY_NAME)


def find_confidence(name: str) -> Confidence:
    """The confidence bound of that name; the error lists what there is."""
    if name not in _BY_NAME:
        raise ConfigError(
            "there is no such confidence bound", where="confidence", got=name, wanted=f"one of: {', '.join(CONFIDENCE_NAMES)}"
        )
    return _BY_NAME[name]


def _mean(total: Whole, draws: int, resolution: int) -> Floats:
    return np.asarray(total / (draws * resolution), dtype=np.float64)


def _hoeffding_margin(draws: int, level: float) -> float:
    return math.sqrt(-math.log(level) / (2 * draws))


def _bernstein_margin(total: Whole, squares: Whole, draws: int, resolution: int, level: float) -> NDArray[np.float64]:
    if draws < 2:
        return np.ones(total.shape, dtype=np.float64)
    logarithm = math.log(2) - math.log(level)
    # The variance of nearly equal scores is a small difference of large numbers, and its root would show the rounding.
    variance = spread_of(total, squares, draws).astype(np.float64) / (draws * (draws - 1) * resolution**2)
    return np.sqrt(2 * variance * logarithm / draws) + 7 * logarithm / (3 * (draws - 1))
