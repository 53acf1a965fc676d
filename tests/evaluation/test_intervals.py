"""Intervals keep their confidence exactly, and the popular approximation does not."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from twinproof.errors import UserError
from twinproof.evaluation.accuracy import Interval, binomial_interval, mean_interval

Rule = Callable[[int, int], Interval]
MeanRule = Callable[[list[float], float], Interval]

TOTALS = (1, 2, 3, 5, 10, 30, 100)
PROBABILITIES = np.concatenate([np.linspace(0, 1, 101), [0.001, 0.004, 0.0123, 0.9877, 0.999]])


def normal_approximation(successes: int, total: int) -> Interval:
    """The planted bug: what a textbook's first chapter offers."""
    share = successes / total
    width = 1.96 * math.sqrt(share * (1 - share) / total)
    return Interval(share, share - width, share + width, 0.95)


def smallest_coverage(rule: Rule) -> float:
    """Exact probability that the interval holds p, by enumeration of all outcomes, at its worst over the grid."""
    worst = 1.0
    for total in TOTALS:
        intervals = [rule(successes, total) for successes in range(total + 1)]
        for p in PROBABILITIES:
            held = [interval.low <= p <= interval.high for interval in intervals]
            worst = min(worst, float(binom.pmf(np.arange(total + 1), total, p)[held].sum()))
    return worst


def test_binomial_interval_guarantees_its_coverage_everywhere() -> None:
    assert smallest_coverage(binomial_interval) >= 0.95 - 1e-12


def test_the_coverage_check_catches_the_normal_approximation() -> None:
    assert smallest_coverage(normal_approximation) < 0.5


def test_the_coverage_check_catches_an_interval_that_is_too_short_by_a_little() -> None:
    assert smallest_coverage(lambda successes, total: binomial_interval(successes, total, 0.93)) < 0.95


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [
        (0, 1, 0.0, 0.975),
        (1, 1, 0.025, 1.0),
        (0, 10, 0.0, 0.308498),  # 1 - 0.025 ** (1 / 10)
        (10, 10, 0.691502, 1.0),
        (5, 10, 0.187086, 0.812914),
    ],
)
def test_binomial_interval_has_the_known_ends_rounded_outwards(successes: int, total: int, low: float, high: float) -> None:
    interval = binomial_interval(successes, total)
    assert low - 1.1e-6 <= interval.low <= low
    assert high <= interval.high <= min(1.0, high + 1.1e-6)
    assert interval.value == successes / total


def test_a_higher_confidence_gives_a_wider_interval() -> None:
    narrow, wide = binomial_interval(40, 50, 0.9), binomial_interval(40, 50, 0.999)
    assert wide.low < narrow.low < 0.8 < narrow.high < wide.high


@pytest.mark.parametrize(
    ("successes", "total", "confidence", "message"),
    [
        (0, 0, 0.95, "needs observations"),
        (-1, 3, 0.95, "does not fit the total"),
        (4, 3, 0.95, "does not fit the total"),
        (1, 3, 1.0, "confidence cannot"),
        (1, 3, float("nan"), "confidence cannot"),
    ],
)
def test_binomial_interval_refuses(successes: int, total: int, confidence: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        binomial_interval(successes, total, confidence)


def rare_spike(generator: np.random.Generator, count: int, upper: float) -> list[float]:
    """Mostly 0, seldom the largest value: the mean is easily missed by who trusts the sample's spread."""
    return [float(value) for value in upper * (generator.random(count) < 0.02)]


def coin(generator: np.random.Generator, count: int, upper: float) -> list[float]:
    return [float(value) for value in upper * (generator.random(count) < 0.5)]


def uniform(generator: np.random.Generator, count: int, upper: float) -> list[float]:
    return [float(value) for value in upper * generator.random(count)]


SHAPES = ((rare_spike, 0.02), (coin, 0.5), (uniform, 0.5))


def normal_mean(values: list[float], upper: float) -> Interval:
    """The planted bug: mean plus or minus 1.96 standard errors."""
    mean, error = float(np.mean(values)), 1.96 * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return Interval(mean, mean - error, mean + error, 0.95)


def most_misses(rule: MeanRule, trials: int = 500) -> int:
    """How often the true mean is missed, at the worst of the shapes and sizes; fixed seed."""
    worst = 0
    for shape, share in SHAPES:
        for count in (2, 20, 200):
            generator = np.random.default_rng(20240607)
            misses = 0
            for _ in range(trials):
                interval = rule(shape(generator, count, 1.7), 1.7)
                misses += not interval.low <= share * 1.7 <= interval.high
            worst = max(worst, misses)
    return worst


# With 500 trials at 5 %, more than 51 misses happen with a probability below 1e-6.
MISSES_ALLOWED = int(binom.isf(1e-6, 500, 0.05))


def test_mean_interval_guarantees_its_coverage() -> None:
    assert most_misses(mean_interval) <= MISSES_ALLOWED


def test_the_coverage_check_catches_the_normal_approximation_of_a_mean() -> None:
    assert most_misses(normal_mean) > MISSES_ALLOWED


def test_mean_interval_scales_with_the_range() -> None:
    """Catches a bound that forgets to multiply by the range."""
    values = [0.1, 0.4, 0.35, 0.9] * 25
    small, large = mean_interval(values, 1.0), mean_interval([10 * value for value in values], 10.0)
    assert large.low == pytest.approx(10 * small.low, abs=1e-4)
    assert large.high == pytest.approx(10 * small.high, abs=1e-4)


def test_mean_interval_uses_the_smaller_spread() -> None:
    """With 10,000 equal numbers the empirical Bernstein bound is 7 ln(160) / (3 * 9999) wide, far below Hoeffding's."""
    interval = mean_interval([0.5] * 10_000, 1.0)
    width = 7 * math.log(160) / (3 * 9999)
    assert interval.low == pytest.approx(0.5 - width, abs=2e-6)
    assert interval.high == pytest.approx(0.5 + width, abs=2e-6)
    assert width < math.sqrt(math.log(80) / 20_000)


@pytest.mark.parametrize("values", [[0.0], [2.0], [1.0], [0.0, 0.0], [2.0] * 3])
def test_mean_interval_of_few_numbers_stays_in_range(values: list[float]) -> None:
    interval = mean_interval(values, 2.0)
    assert 0 <= interval.low <= interval.value <= interval.high <= 2.0
    assert interval.high - interval.low > 0.5


@pytest.mark.parametrize(
    ("values", "upper", "message"),
    [
        ([], 1.0, "needs observations"),
        ([0.5, 1.5], 1.0, "value 1"),
        ([-0.1], 1.0, "outside the range"),
        ([float("nan")], 1.0, "outside the range"),
        ([0.0], 0.0, "upper cannot"),
        ([0.0], math.inf, "upper cannot"),
    ],
)
def test_mean_interval_refuses(values: list[float], upper: float, message: str) -> None:
    with pytest.raises(UserError, match=message):
        mean_interval(values, upper)


def test_as_dict_has_the_keys_of_the_run_format() -> None:
    assert set(binomial_interval(3, 4).as_dict()) == {"value", "low", "high", "confidence"}
