"""Means over repetitions, with intervals, and the papers' two-tailed t-tests.

The unit of repetition is a training from scratch with fresh randomness. Accuracies on test images of one trained model share
that model: an interval over images says how well this model was measured, never how another training would turn out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student

from twinproof.errors import ConfigError, DataError

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean over repetitions and its t-interval; ``low`` and ``high`` are None where one repetition allows none."""

    mean: float
    low: float | None
    high: float | None
    repetitions: int

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def over_repetitions(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """The mean of one number for each repetition, with the two-sided Student interval.

    Guarantees
        For independent normal repetitions the interval holds the true mean with probability ``confidence``, however few they
        are (from two on). It is not rounded and not cut to [0, 1]. One repetition has no interval.
    """
    if not values:
        raise DataError("a mean needs at least one repetition", got=0, wanted="one number for each repetition")
    if not 0 < confidence < 1:
        raise ConfigError("the confidence is not usable", where="confidence", got=confidence, wanted="between 0 and 1")
    mean, count = fmean(values), len(values)
    if count == 1:
        return Estimate(mean, None, None, 1)
    width = float(student.ppf(0.5 + confidence / 2, count - 1)) * stdev(values) / math.sqrt(count)
    return Estimate(mean, mean - width, mean + width, count)


@dataclass(frozen=True)
class TTest:
    """A two-tailed t-test of "``first`` and ``second`` have the same mean"; ``difference`` is first minus second.

    ``statistic`` and ``p`` are None where the numbers allow no test: fewer than two, or none of them varies.
    """

    first: str
    second: str
    kind: str
    difference: float
    statistic: float | None
    degrees: float | None
    p: float | None
    first_count: int
    second_count: int

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


WELCH = "Welch, over independent repetitions"
PAIRED = "paired, over settings"


def welch_test(first: str, second: str, left: Sequence[float], right: Sequence[float]) -> TTest:
    """Welch's test of two groups of independent repetitions, whose variances may differ."""
    if not left or not right:
        raise DataError("a test needs two groups", got=f"{len(left)} and {len(right)} numbers", wanted="at least one in each")
    gap = fmean(left) - fmean(right)
    if min(len(left), len(right)) < 2:
        return TTest(first, second, WELCH, gap, None, None, None, len(left), len(right))
    parts = [stdev(group) ** 2 / len(group) for group in (left, right)]
    spread = sum(parts)
    if spread == 0:
        return TTest(first, second, WELCH, gap, None, None, None, len(left), len(right))
    weights = [part**2 / (len(group) - 1) for part, group in zip(parts, (left, right), strict=True)]
    return _tested(first, second, WELCH, gap, gap / math.sqrt(spread), spread**2 / sum(weights), len(left), len(right))


def paired_test(first: str, second: str, left: Sequence[float], right: Sequence[float]) -> TTest:
    """The paired test over settings (attack, size, budget), each of which both methods met.

    Settings share models and attacks, so that they are not independent and this p is smaller than it should be. It is here
    because published p-values of that size can only come from such a count.
    """
    if not left or len(left) != len(right):
        raise DataError(
            "a paired test needs pairs", got=f"{len(left)} and {len(right)} numbers", wanted="equally many, above 0"
        )
    pairs = [one - other for one, other in zip(left, right, strict=True)]
    gap, count = fmean(pairs), len(pairs)
    spread = stdev(pairs) / math.sqrt(count) if count > 1 else 0.0
    if spread == 0:
        return TTest(first, second, PAIRED, gap, None, None, None, count, count)
    return _tested(first, second, PAIRED, gap, gap / spread, count - 1.0, count, count)


def _tested(first: str, second: str, kind: str, gap: float, statistic: float, degrees: float, left: int, right: int) -> TTest:
    p = 2.0 * float(student.sf(abs(statistic), degrees))
    return TTest(first, second, kind, gap, statistic, degrees, p, left, right)
