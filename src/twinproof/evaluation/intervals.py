"""Confidence intervals for what is measured on a test set: a share of inputs, and a mean of bounded numbers.

Both are valid for every sample size and every distribution of the test inputs, not only for large samples: near 0 % and 100 %,
where certified accuracies live, the usual normal approximation promises more than it keeps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import betaincinv

from twinproof.errors import ConfigError, DataError
from twinproof.rounding import round_down, round_up

# Far above the error of the incomplete beta function and of sums in double precision, far below the last digit shown.
_NUMERICAL_SLACK = 1e-9


@dataclass(frozen=True)
class Interval:
    """A measured ``value`` and the two-sided interval that holds the true one with at least ``confidence``."""

    value: float
    low: float
    high: float
    confidence: float

    def as_dict(self) -> dict[str, float]:
        """The four numbers by name, as run.json and the reports hold them."""
        return {"value": self.value, "low": self.low, "high": self.high, "confidence": self.confidence}


def binomial_interval(successes: int, total: int, confidence: float = 0.95) -> Interval:
    """The two-sided Clopper-Pearson interval for a probability, from ``successes`` of ``total`` independent trials.

    Guarantees
        For every n and p: if ``successes`` is binomial(n, p), then P(low <= p <= high) >= ``confidence``. Each side errs with
        probability at most (1 - confidence) / 2 (Clopper and Pearson 1934: the ends solve P(X >= k) and P(X <= k) for that
        probability); ``low`` is rounded down and ``high`` up, which only widens. ``value`` is the plain share, unrounded.
    """
    _check_confidence(confidence)
    if total < 1:
        raise DataError("an interval needs observations", got=total, wanted="at least one", fix="evaluate at least one input")
    if not 0 <= successes <= total:
        raise DataError("the count of successes does not fit the total", got=f"{successes} of {total}", wanted=f"0..{total}")
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else float(betaincinv(successes, total - successes + 1, tail))
    high = 1.0 if successes == total else float(betaincinv(successes + 1, total - successes, 1 - tail))
    return _outward(successes / total, low, high, 1.0, confidence)


def mean_interval(values: Sequence[float], upper: float, confidence: float = 0.95) -> Interval:
    """An interval for the mean of independent numbers that are known to lie in [0, ``upper``].

    The ends are the tighter of two bounds: Hoeffding (1963), width growing with ``upper``, and the empirical Bernstein bound of
    Maurer and Pontil (2009, theorem 4), width growing with the sample's standard deviation. One number has only the first.

    Guarantees
        For every n and every distribution on [0, upper], P(low <= mean <= high) >= ``confidence``. Proof: with
        delta = 1 - confidence, each of the four one-sided bounds fails with probability at most delta / 4, so by the union
        bound all of them hold at once with probability 1 - delta, and then so does their intersection. ``low`` is rounded
        down and ``high`` up. ``value`` is the sample mean, unrounded.
    """
    _check_confidence(confidence)
    sample = _bounded_sample(values, upper)
    mean = min(math.fsum(sample.tolist()) / len(sample), upper)
    width = upper * min(_hoeffding(len(sample), confidence), _bernstein(sample / upper, confidence))
    return _outward(mean, mean - width, mean + width, upper, confidence)


def _hoeffding(count: int, confidence: float) -> float:
    """Width for numbers in [0, 1]; one side fails with probability at most a quarter of what may fail."""
    return math.sqrt(math.log(4 / (1 - confidence)) / (2 * count))


def _bernstein(sample: np.ndarray[tuple[int], np.dtype[np.float64]], confidence: float) -> float:
    """Width for numbers in [0, 1] from their sample variance; the theorem's 2 / delta with a quarter of what may fail."""
    count = len(sample)
    if count < 2:
        return math.inf
    log_term = math.log(8 / (1 - confidence))
    return math.sqrt(2 * float(sample.var(ddof=1)) * log_term / count) + 7 * log_term / (3 * (count - 1))


def _outward(value: float, low: float, high: float, upper: float, confidence: float) -> Interval:
    slack = _NUMERICAL_SLACK * upper
    return Interval(
        value=value,
        low=round_down(max(0.0, low - slack)),
        high=min(upper, round_up(high + slack)),
        confidence=confidence,
    )


def _bounded_sample(values: Sequence[float], upper: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    if not (math.isfinite(upper) and upper > 0):
        raise ConfigError(
            "the upper end of the values is not usable", where="upper", got=upper, wanted="a finite number above 0"
        )
    sample = np.array(list(values), dtype=np.float64)
    if len(sample) == 0:
        raise DataError("an interval needs observations", got=0, wanted="at least one", fix="evaluate at least one input")
    outside = np.flatnonzero(~((sample >= 0) & (sample <= upper)))  # written so that NaN counts as outside
    if len(outside):
        raise DataError(
            "a value lies outside the range that the interval rests on",
            where=f"value {int(outside[0])}",
            got=float(sample[outside[0]]),
            wanted=f"0..{upper}",
        )
    return sample


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ConfigError("the confidence is not usable", where="confidence", got=confidence, wanted="between 0 and 1")
