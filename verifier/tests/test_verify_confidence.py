"""Confidence bounds against their definitions, reference numbers and simulated scores."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta, binom

from twinproof_verify.bounds import CONFIDENCES, Counts, Rule, Way, lower_bound, upper_bound, variance

UNIT = 2**20


@pytest.mark.parametrize(("confidence", "value"), list(zip(CONFIDENCES, (0.867464, 0.841230, 0.845240), strict=True)))
def test_reference_numbers(confidence: str, value: float) -> None:
    """900 of 1,000 votes at 0.001; and what bounds a class from below bounds all others together from above."""
    votes, rest = np.array([900]), np.array([100])
    low = lower_bound(confidence, votes, votes, 1000, 1, 0.001)
    assert low[0] == pytest.approx(value, abs=6e-7)
    assert upper_bound(confidence, rest, rest, 1000, 1, 0.001)[0] == pytest.approx(1 - low[0], rel=1e-12)


@pytest.mark.parametrize("votes", [0, 1, 17, 499, 500])
def test_so_few_votes_are_just_unlikely_at_the_upper_bound(votes: int) -> None:
    upper = upper_bound("clopper-pearson", np.array([votes]), np.array([votes]), 500, 1, 0.01)[0]
    assert upper == 1.0 if votes == 500 else binom.cdf(votes, 500, upper) == pytest.approx(0.01, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_variance_is_that_of_the_scores(seed: int) -> None:
    """Also where it is a small difference of large numbers, which float64 sums would lose."""
    draws = np.random.default_rng(seed)
    scores = np.floor(draws.beta(5e7, 5e3, 4000) * UNIT).astype(np.int64)
    found = variance(np.array([scores.sum()]), np.array([(scores**2).sum()]), 4000, UNIT)[0]
    assert found == pytest.approx(np.var(scores / UNIT, ddof=1), rel=1e-9)
    assert found < 1e-10


@pytest.mark.parametrize("confidence", ["hoeffding", "empirical-bernstein"])
def test_bounds_on_scores_hold_as_often_as_they_say(confidence: str) -> None:
    """2,000 simulated inputs at level 0.05: at most 151 may fail but once in a million."""
    draws = np.random.default_rng(6)
    scores = np.floor(draws.beta(6, 2, (2000, 300)) * UNIT).astype(np.int64)
    total, squares = scores.sum(axis=1), (scores**2).sum(axis=1)
    mean = beta(6, 2).mean()
    failures = int((lower_bound(confidence, total, squares, 300, UNIT, 0.05) > mean).sum())
    failures += int((upper_bound(confidence, total, squares, 300, UNIT, 0.05) < mean - 1 / UNIT).sum())
    assert failures <= int(binom.isf(1e-6, 4000, 0.05))
    assert (total / (300 * UNIT) > mean).sum() > binom.isf(1e-6, 2000, 0.05), "the mean itself is no bound"


def test_one_draw_shows_no_variance() -> None:
    one = np.array([1])
    assert lower_bound("empirical-bernstein", one, one, 1, 1, 0.1)[0] == 0
    assert upper_bound("empirical-bernstein", one, one, 1, 1, 0.1)[0] == 1


def test_a_union_looks_at_every_class_and_still_keeps_the_complement() -> None:
    """The runner-up's own bound counts where it is the smaller one; tau is paid on both sides."""
    counts = Counts(*(np.array(sums) for sums in ([700, 990], [700, 990], [100, 10], [100, 10])))
    plain = Rule(1.0, 0.0, 1000, 0.001, Way(runner_up="complement", classes=10)).bounds(counts)
    union = Rule(1.0, 0.0, 1000, 0.001, Way(runner_up="union", classes=10)).bounds(counts)
    paid = Rule(1.0, 0.01, 1000, 0.001, Way(runner_up="union", classes=10)).bounds(counts)
    own = upper_bound("clopper-pearson", counts.other, counts.other, 1000, 1, 0.0001)
    assert (union[0] < plain[0]).all(), "a share of alpha for each class"
    np.testing.assert_allclose(union[1], np.minimum(own, 1 - union[0]))
    assert union[1][0] < plain[1][0]
    np.testing.assert_allclose(paid[0], union[0] - 0.01)
    np.testing.assert_allclose(paid[1], union[1] + 0.01)
