"""Confidence bounds: reference numbers, exact coverage by enumeration, the union over classes, and planted bugs."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from bounds_oracles import ALPHA, INPUTS, Floats, Whole, few
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, binom, norm

from twinproof.certification.confidence import (
    CONFIDENCE_NAMES,
    Confidence,
    Evidence,
    RunnerUp,
    clopper_pearson_lower,
    few_digits_above,
    find_confidence,
)
from twinproof.errors import ConfigError, DataError

Lower = Callable[[Whole, int, float], Floats]
LEVELS = (1e-6, 0.001, 0.05, 0.5)
RESOLUTION = 2**20
each_name = pytest.mark.parametrize("name", CONFIDENCE_NAMES)


@pytest.mark.parametrize(
    ("name", "lower"), [("hoeffding", 0.841230), ("clopper-pearson", 0.867464), ("empirical-bernstein", 0.845240)]
)
def test_reference_numbers(name: str, lower: float) -> None:
    evidence = Evidence.of_votes(1000, np.array([900]))
    low, high = find_confidence(name).bounds(evidence, 0.001, 10, RunnerUp.COMPLEMENT)
    assert float(low[0]) == pytest.approx(lower, abs=5.1e-7)
    assert float(high[0]) == 1 - float(low[0])


def _worst_failure(lower: Lower, draws: int, level: float) -> float:
    """The largest P(bound > p) over p, exactly, as a multiple of ``level``; p just below each value of the bound is worst."""
    votes = np.arange(draws + 1, dtype=np.int64)
    bounds = lower(votes, draws, level)
    p = np.unique(np.clip(np.concatenate((np.linspace(0, 1, 51), np.nextafter(bounds, 0))), 0, 1))
    chances = np.asarray(binom.pmf(votes[None, :], draws, p[:, None]), dtype=np.float64)
    return float((chances * (bounds[None, :] > p[:, None])).sum(axis=1).max()) / level


def _lower_of(confidence: Confidence) -> Lower:
    return lambda votes, draws, level: confidence.lower(votes, votes, draws, 1, level)


def _mirrored_upper_of(confidence: Confidence) -> Lower:
    """The upper bound on the complement, as a lower bound: it must cover as well, less a sixteenth of what tau pays for."""
    return lambda votes, draws, level: 1 - confidence.upper(draws - votes, draws - votes, draws, 1, level) - 2.0**-40


@each_name
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("draws", [1, 2, 10, 57, 333])
def test_coverage_by_enumeration(name: str, draws: int, level: float) -> None:
    for side in (_lower_of, _mirrored_upper_of):
        assert _worst_failure(side(find_confidence(name)), draws, level) <= 1 + 1e-9


def _mean_as_bound(votes: Whole, draws: int, level: float) -> Floats:
    return np.asarray(votes / draws, dtype=np.float64)


def _hoeffding_without_the_root(votes: Whole, draws: int, level: float) -> Floats:
    return np.asarray(votes / draws - math.log(1 / level) / (2 * draws), dtype=np.float64)


def _bernstein(votes: Whole, draws: int, level: float, *, factor: float, rest: float = 7 / 3) -> Floats:
    variance = votes * (draws - votes) / (draws * (draws - 1))
    logarithm = math.log(2 / level)
    return np.asarray(votes / draws - np.sqrt(factor * variance * logarithm / draws) - rest * logarithm / (draws - 1))


def _bernstein_without_the_second_term(votes: Whole, draws: int, level: float) -> Floats:
    return _bernstein(votes, draws, level, factor=2, rest=0)


def _one_vote_too_many(votes: Whole, draws: int, level: float) -> Floats:
    return np.asarray(beta.ppf(level, votes + 1, draws - votes + 1), dtype=np.float64)


def _alpha_five_percent_up(votes: Whole, draws: int, level: float) -> Floats:
    return clopper_pearson_lower(votes, draws, 1.05 * level)


PLANTED = [
    _mean_as_bound,
    _hoeffding_without_the_root,
    _bernstein_without_the_second_term,
    _one_vote_too_many,
    _alpha_five_percent_up,
]


@pytest.mark.parametrize("planted", PLANTED)
def test_planted_bounds_are_caught_by_enumeration(planted: Lower) -> None:
    assert _worst_failure(planted, 333, 0.001) > 1 + 1e-9


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("draws", [1, 10, 333, 1000])
def test_clopper_pearson_is_the_exact_bound_and_no_looser(draws: int, level: float) -> None:
    assert 1 - 1e-6 < _worst_failure(clopper_pearson_lower, draws, level) <= 1 + 1e-9


def _failure_at_one_half(lower: Lower, draws: int, level: float) -> float:
    """P(bound > 1/2) for p = 1/2, exactly, as a multiple of ``level``; for more draws than can be enumerated."""
    near = np.arange(draws // 2, draws // 2 + 10 * math.isqrt(draws), dtype=np.int64)
    first = near[np.argmax(lower(near, draws, level) > 0.5)]
    return float(binom.sf(first - 1, draws, 0.5)) / level


def test_a_lost_factor_in_bernstein_is_caught() -> None:
    """sqrt(V ln / n) for sqrt(2 V ln / n): too little at a small level, with so many draws that the second term is nothing."""
    draws, level = 10**6, 1e-4
    assert _failure_at_one_half(_lower_of(find_confidence("empirical-bernstein")), draws, level) <= 1
    assert _failure_at_one_half(lambda *given: _bernstein(*given, factor=2), draws, level) <= 1
    assert _failure_at_one_half(lambda *given: _bernstein(*given, factor=1), draws, level) > 1


def _soft_sums(draws: int, inputs: int) -> tuple[Whole, Whole, float]:
    """Sums of Beta(1, 9) scores, floored to units of 2^-20, and their expectation (to 2^-20, from below)."""
    scores = np.floor(np.random.default_rng(7).beta(1, 9, size=(inputs, draws)) * RESOLUTION).astype(np.int64)
    return scores.sum(axis=1), (scores**2).sum(axis=1), 0.1 - 1 / RESOLUTION


@pytest.mark.parametrize("name", ["hoeffding", "empirical-bernstein"])
def test_coverage_for_scores(name: str) -> None:
    total, squares, mean = _soft_sums(60, INPUTS)
    confidence = find_confidence(name)
    low = confidence.lower(total, squares, 60, RESOLUTION, ALPHA)
    high = confidence.upper(total, squares, 60, RESOLUTION, ALPHA)
    assert few(int((low > mean + 1 / RESOLUTION).sum()))
    assert few(int((high < mean).sum()))
    assert not few(int((total / (60 * RESOLUTION) > mean + 1 / RESOLUTION).sum())), "planted: the mean itself"


@pytest.mark.parametrize(("name", "lower"), [("hoeffding", 0.842826), ("empirical-bernstein", 0.875406)])
def test_reference_numbers_of_scores(name: str, lower: float) -> None:
    """1,000 scores of Beta(18, 2), whose mean is 0.901596: Bernstein wins where scores vary little."""
    scores = np.floor(np.random.RandomState(1).beta(18, 2, size=1000) * RESOLUTION).astype(np.int64)
    zeros = np.zeros(1, dtype=np.int64)
    evidence = Evidence(1000, RESOLUTION, scores.sum(keepdims=True), (scores**2).sum(keepdims=True), zeros, zeros)
    low, _ = find_confidence(name).bounds(evidence, 0.001, 2, RunnerUp.COMPLEMENT)
    assert float(low[0]) == pytest.approx(lower, abs=5e-7 + 1 / RESOLUTION)


def test_the_variance_of_equal_scores_is_exactly_zero() -> None:
    """In floats it comes out below zero here, and has no root: planted."""
    draws, score = 99_995, 777_777
    total, squares = np.array([draws * score]), np.array([draws * score**2])
    low = find_confidence("empirical-bernstein").lower(total, squares, draws, RESOLUTION, 0.001)
    assert float(low[0]) == pytest.approx(score / RESOLUTION - 7 * math.log(2000) / (3 * (draws - 1)), abs=1e-15)
    assert draws * float(squares[0]) - float(total[0]) ** 2 < 0


def _joint_failures(level: float, classes: int = 10, draws: int = 200) -> int:
    """For how many of 10,000 inputs one of the lower and upper bounds at that level is wrong."""
    votes = np.random.default_rng(1).multinomial(draws, [1 / classes] * classes, size=INPUTS).astype(np.int64)
    confidence = find_confidence("clopper-pearson")
    low = confidence.lower(votes[:, 0], votes[:, 0], draws, 1, level)
    high = confidence.upper(votes[:, 1:], votes[:, 1:], draws, 1, level)
    return int(((low > 1 / classes) | (high < 1 / classes).any(axis=1)).sum())


def test_the_union_holds_for_all_classes_at_once() -> None:
    assert few(_joint_failures(RunnerUp.UNION.level(ALPHA, 10)))
    assert not few(_joint_failures(ALPHA)), "planted: alpha for each class"


@each_name
def test_the_union_spends_alpha_over_classes_and_never_exceeds_the_complement(name: str) -> None:
    confidence = find_confidence(name)
    votes, other = np.array([900, 500, 700]), np.array([20, 499, 0])
    evidence = Evidence.of_votes(1000, votes, other)
    low, high = confidence.bounds(evidence, 0.01, 5, RunnerUp.UNION)
    assert np.array_equal(low, confidence.lower(votes, votes, 1000, 1, 0.01 / 5))
    assert np.array_equal(high, np.minimum(confidence.upper(other, other, 1000, 1, 0.01 / 5), 1 - low))
    assert high[0] < 1 - low[0]
    assert (low <= confidence.bounds(evidence, 0.01, 5, RunnerUp.COMPLEMENT)[0]).all()


def test_the_strongest_other_class_is_the_one_with_the_largest_upper_bound() -> None:
    """Class 2 has the larger mean, class 1 the larger variance: Hoeffding and Bernstein name different rivals."""
    draws = 1000
    sums, squares = np.array([[7000, 1480, 1520]]), np.array([[50_000, 14_800, 2400]])
    top = np.array([0])
    found = {
        name: find_confidence(name).evidence(
            sums, squares, top, draws=draws, resolution=10, alpha=0.01, runner_up=RunnerUp.UNION
        )
        for name in ("hoeffding", "empirical-bernstein")
    }
    assert found["hoeffding"].other.tolist() == [1520]
    assert found["empirical-bernstein"].other.tolist() == [1480]
    assert found["empirical-bernstein"].other_squares.tolist() == [14_800]
    assert found["hoeffding"].total.tolist() == [7000]
    uppers = find_confidence("empirical-bernstein").upper(sums, squares, draws, 10, 0.01 / 3)
    assert uppers[0, 1] > uppers[0, 2]


def test_bounds_stay_inside_zero_and_one() -> None:
    for name in CONFIDENCE_NAMES:
        for draws in (1, 2, 30):
            votes = np.arange(draws + 1, dtype=np.int64)
            low, high = find_confidence(name).bounds(Evidence.of_votes(draws, votes, votes[::-1]), 0.05, 2, RunnerUp.UNION)
            assert ((low >= 0) & (low <= 1) & (high >= 0) & (high <= 1)).all()


def test_clopper_pearson_refuses_scores() -> None:
    zeros = np.zeros(1, dtype=np.int64)
    with pytest.raises(ConfigError, match="bounds are for votes"):
        find_confidence("clopper-pearson").bounds(Evidence(10, 4, zeros, zeros, zeros, zeros), 0.01, 2, RunnerUp.COMPLEMENT)


@pytest.mark.parametrize(
    ("alpha", "classes", "message"), [(0.0, 2, "alpha"), (1.0, 2, "alpha"), (math.nan, 2, "alpha"), (0.1, 1, "classes")]
)
def test_settings_that_cannot_be_used_are_refused(alpha: float, classes: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_confidence("hoeffding").bounds(Evidence.of_votes(10, np.array([9])), alpha, classes, RunnerUp.COMPLEMENT)


def test_an_unknown_confidence_is_refused() -> None:
    with pytest.raises(ConfigError, match="clopper-pearson, hoeffding, empirical-bernstein"):
        find_confidence("wald")


def _evidence(**change: Any) -> Evidence:
    two = np.array([3, 4])
    values: dict[str, Any] = {
        "draws": 4,
        "resolution": 1,
        "total": two,
        "squares": two,
        "other": two * 0,
        "other_squares": two * 0,
    }
    return Evidence(**{**values, **change})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"draws": 0}, ConfigError, "draws cannot be used"),
        ({"resolution": 0}, ConfigError, "resolution cannot be used"),
        ({"draws": 2**24, "resolution": 2**20}, ConfigError, "overflow"),
        ({"squares": np.array([3])}, DataError, "do not fit together"),
        ({"other": np.array([0.0, 0.0])}, DataError, "do not fit together"),
        ({"total": np.array([3, 5]), "squares": np.array([3, 5])}, DataError, "input 1"),
        ({"total": np.array([-1, 4]), "squares": np.array([-1, 4])}, DataError, "input 0"),
        ({"squares": np.array([4, 4])}, DataError, "no scores between 0 and 1"),
        ({"squares": np.array([2, 4])}, DataError, "no scores between 0 and 1"),
        ({"other": np.array([1, 0])}, DataError, "other, input 0"),
    ],
)
def test_sums_that_cannot_be_are_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        _evidence(**change)


def test_planted_normal_approximation_is_caught() -> None:
    share = np.arange(51) / 50
    bounds = share + norm.ppf(0.001) * np.sqrt(share * (1 - share) / 50)
    assert binom.pmf(50, 50, 0.999) > 0.001
    assert bounds[50] > 0.999, "unanimous votes make the approximation certain, which no sample can be"
    assert clopper_pearson_lower([50], 50, 0.001)[0] < 0.999


@pytest.mark.parametrize("alpha", LEVELS)
@pytest.mark.parametrize("draws", [1, 7, 333, 100_000])
def test_equals_the_beta_quantile(draws: int, alpha: float) -> None:
    votes = np.unique(np.linspace(1, draws, 50).astype(int))
    np.testing.assert_allclose(
        clopper_pearson_lower(votes, draws, alpha), beta.ppf(alpha, votes, draws - votes + 1), rtol=1e-9, atol=0
    )


def test_no_votes_and_all_votes() -> None:
    assert clopper_pearson_lower([0], 100, 0.001)[0] == 0.0
    assert clopper_pearson_lower([100], 100, 0.001)[0] == pytest.approx(0.001 ** (1 / 100), rel=1e-12)
    assert clopper_pearson_lower([0, 0, 5], 5, 0.05).tolist()[:2] == [0.0, 0.0]


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_never_below_and_hardly_above(value: float) -> None:
    short = few_digits_above(value)
    assert value <= short <= value * (1 + 1.01e-9)
    assert len(Decimal(repr(short)).normalize().as_tuple().digits) <= 10 or short == value
    assert few_digits_above(short) >= short


@pytest.mark.parametrize(
    ("value", "short"), [(1.0, 1.0), (2 / 3, 0.6666666667), (1 / 3, 0.3333333334), (92.0271234567, 92.02712346)]
)
def test_examples(value: float, short: float) -> None:
    assert few_digits_above(value) == short


def test_the_last_bits_do_not_matter() -> None:
    value = 3.934233123456
    assert few_digits_above(value) == few_digits_above(math.nextafter(value, math.inf)) == few_digits_above(value * (1 + 1e-14))
