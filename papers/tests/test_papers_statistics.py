"""Intervals over repetitions cover as they promise, one over images would not; tests have scipy's values and the right sign."""

from __future__ import annotations

import math
from statistics import fmean, stdev

import numpy as np
import pytest
from scipy import stats

from twinproof.errors import ConfigError, DataError
from twinproof_papers.findings import PAIRED, WELCH, over_repetitions, paired_test, welch_test

REPETITIONS, IMAGES, TRIALS = 3, 1000, 2000
# Trainings differ by 3 points; a measurement on 1,000 images errs by less than 1.3.
TRUE_MEAN, BETWEEN = 0.8, 0.03


def _trials() -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    generator = np.random.default_rng(5)
    accuracies = np.clip(generator.normal(TRUE_MEAN, BETWEEN, (TRIALS, REPETITIONS)), 0, 1)
    return list(generator.binomial(IMAGES, accuracies) / IMAGES)


def _interval_over_images(values: list[float]) -> tuple[float, float]:
    """The planted bug: every image of every training taken for an independent repetition."""
    mean, count = fmean(values), IMAGES * len(values)
    width = float(stats.t.ppf(0.975, count - 1)) * math.sqrt(mean * (1 - mean) / count)
    return mean - width, mean + width


def test_intervals_over_repetitions_cover_and_over_images_do_not() -> None:
    over_seeds = over_images = 0
    for trial in _trials():
        found = over_repetitions(trial.tolist())
        assert found.low is not None
        assert found.high is not None
        over_seeds += found.low <= TRUE_MEAN <= found.high
        low, high = _interval_over_images(trial.tolist())
        over_images += low <= TRUE_MEAN <= high
    # 95 % of 2,000 with a standard error of 0.5 %: five of them are a false alarm below 1e-6.
    assert 0.95 - 5 * 0.0049 < over_seeds / TRIALS < 0.95 + 5 * 0.0049
    assert over_images / TRIALS < 0.75, "an interval over images is far too narrow"


def test_interval_is_students() -> None:
    values = [0.7, 0.8, 0.75, 0.9]
    found = over_repetitions(values, 0.9)
    expected = stats.t.interval(0.9, 3, loc=fmean(values), scale=stdev(values) / 2)
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-12)
    assert (found.mean, found.repetitions) == (fmean(values), 4)


def test_one_repetition_has_no_interval_and_none_is_an_error() -> None:
    assert over_repetitions([0.5]).as_dict() == {"mean": 0.5, "low": None, "high": None, "repetitions": 1}
    with pytest.raises(DataError, match="at least one repetition"):
        over_repetitions([])
    with pytest.raises(ConfigError, match="confidence"):
        over_repetitions([0.5, 0.6], 1.0)


LEFT, RIGHT = [82.0, 84.5, 83.0], [70.0, 75.0, 71.0]


def test_welch_is_scipys_and_signed() -> None:
    found = welch_test("a", "b", LEFT, RIGHT)
    expected = stats.ttest_ind(LEFT, RIGHT, equal_var=False)
    assert (found.statistic, found.p, found.degrees) == pytest.approx((expected.statistic, expected.pvalue, expected.df))
    assert found.difference == pytest.approx(fmean(LEFT) - fmean(RIGHT))
    assert (found.first, found.kind, found.first_count) == ("a", WELCH, 3)


def test_paired_is_scipys_and_signed() -> None:
    found = paired_test("a", "b", LEFT, RIGHT)
    expected = stats.ttest_rel(LEFT, RIGHT)
    assert (found.statistic, found.p, found.degrees) == pytest.approx((expected.statistic, expected.pvalue, 2))
    assert found.kind == PAIRED


@pytest.mark.parametrize("test", [welch_test, paired_test])
def test_swapped_groups_are_told_apart(test: object) -> None:
    """Planted: the same numbers with the groups exchanged under the same names. Only p stays, and p alone says nothing."""
    assert callable(test)
    right, swapped = test("a", "b", LEFT, RIGHT), test("a", "b", RIGHT, LEFT)
    assert right.p == pytest.approx(swapped.p)
    assert right.difference > 0 > swapped.difference
    assert right.statistic > 0 > swapped.statistic


def test_welch_rejects_as_often_as_it_says() -> None:
    generator = np.random.default_rng(7)
    draws = generator.normal(0, 1, (4000, 2, 5))
    rejected = sum((welch_test("a", "b", *pair.tolist()).p or 0) < 0.05 for pair in draws)
    assert 0.05 - 5 * 0.0035 < rejected / 4000 < 0.05 + 5 * 0.0035


def test_what_allows_no_test_gives_none() -> None:
    assert welch_test("a", "b", [1.0], [2.0, 3.0]).p is None
    assert welch_test("a", "b", [1.0, 1.0], [2.0, 2.0]).p is None
    assert paired_test("a", "b", [1.0, 2.0], [2.0, 3.0]).p is None
    with pytest.raises(DataError, match="two groups"):
        welch_test("a", "b", [], [1.0])
    with pytest.raises(DataError, match="needs pairs"):
        paired_test("a", "b", [1.0], [1.0, 2.0])
