"""Features to levels, between bounds that are declared, public, or estimated privately with measured sensitivity and noise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import kstest

from twinproof.data import scaling as scaling_module
from twinproof.data.record import RangeSpending, Records, Scaling
from twinproof.data.scaling import (
    BINS,
    FALLBACK,
    FEATURE_LEVELS,
    RangeWarning,
    bin_edges,
    bin_of,
    check_finite,
    check_fits,
    declared_scaling,
    gaussian_noise,
    keep_threshold,
    private_scaling,
    range_histograms,
    scaling_of_test,
    to_levels,
)
from twinproof.errors import ConfigError, DataError
from twinproof.keys import Key

NUMBERS = st.floats(min_value=-1e300, max_value=1e300)


def test_levels_by_hand() -> None:
    scaling = Scaling((0.0, -1.0), (10.0, 1.0), "declared")
    levels = to_levels(np.array([[0.0, -1.0], [10.0, 1.0], [5.0, 0.0], [-3.0, 9.0], [1e308, -1e308]]), scaling)
    assert levels.dtype == np.uint16
    assert levels.tolist() == [[0, 0], [65535, 65535], [32768, 32768], [0, 65535], [65535, 0]]


@settings(derandomize=True, deadline=None)
@given(value=NUMBERS, low=NUMBERS, high=NUMBERS)
def test_a_value_inside_moves_by_half_a_level_at_most(value: float, low: float, high: float) -> None:
    assume(low < high)
    scaling = Scaling((low,), (high,), "declared")
    level = int(to_levels(np.array([[value]]), scaling)[0, 0])
    share = (min(max(value, low), high) - low) / (high - low)
    assert abs(level / FEATURE_LEVELS - share) <= 0.5 / FEATURE_LEVELS * (1 + 1e-9)


def depends_on_other_rows(scale: Callable[[NDArray[np.float64], Scaling], NDArray[np.uint16]]) -> bool:
    values = np.random.default_rng(0).normal(size=(50, 3))
    scaling = Scaling((-2.0,) * 3, (2.0,) * 3, "declared")
    return not np.array_equal(scale(values, scaling)[:20], scale(values[:20], scaling))


def data_dependent_levels(values: NDArray[np.float64], scaling: Scaling) -> NDArray[np.uint16]:
    """The planted bug: bounds of the records themselves, which is how scalers usually work."""
    low, high = values.min(axis=0), values.max(axis=0)
    return to_levels(values, Scaling(tuple(map(float, low)), tuple(map(float, high)), "declared"))


def test_a_row_depends_on_itself_alone() -> None:
    assert not depends_on_other_rows(to_levels)
    assert depends_on_other_rows(data_dependent_levels)


def test_test_bounds_hold_the_test_records_and_constants() -> None:
    values = np.array([[1.0, 7.0, 0.0, -1e6], [3.0, 7.0, 0.0, -1e6]])
    scaling = scaling_of_test(values)
    assert (scaling.source, scaling.spending) == ("test", None)
    assert all(low < smallest for low, smallest in zip(scaling.low, values.min(axis=0), strict=True))
    assert all(high > largest for high, largest in zip(scaling.high, values.max(axis=0), strict=True))
    assert to_levels(values, scaling)[:, 1].tolist() == [32768, 32768]
    assert (scaling.low[0], scaling.high[0]) == pytest.approx((0.9, 3.1))
    with pytest.raises(ConfigError, match="no usable bounds"):
        scaling_of_test(np.array([[-1.7e308], [1.7e308]]))


def test_declared_bounds_by_name_and_for_the_rest() -> None:
    scaling = declared_scaling({"b": (0.0, 2.0), "*": (-1.0, 1.0)}, ("a", "b", "c"))
    assert (scaling.low, scaling.high, scaling.source) == ((-1.0, 0.0, -1.0), (1.0, 2.0, 1.0), "declared")
    with pytest.raises(ConfigError, match="do not fit") as caught:
        declared_scaling({"a": (0.0, 1.0), "hight": (0.0, 1.0)}, ("a", "height", "weight"))
    assert caught.value.got == "unknown: hight; missing: height, weight"
    with pytest.raises(ConfigError, match="other data"):
        check_fits(Scaling((0.0,), (1.0,), "test"), ("a", "b"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(value: float) -> None:
    inputs = np.zeros((3, 2))
    inputs[1, 1] = value
    with pytest.raises(DataError, match="record 1, feature 'b'"):
        check_finite(Records(inputs, np.zeros(3), "sample"), ("a", "b"))


KEY = Key.from_seed(7)
Histograms = Callable[[NDArray[np.float64]], NDArray[np.int64]]


def awkward_values(count: int, features: int) -> NDArray[np.float64]:
    generator = np.random.default_rng(5)
    magnitudes = 2.0 ** generator.integers(-60, 60, (count, features))
    values = generator.normal(size=(count, features)) * magnitudes
    values[generator.random((count, features)) < 0.2] = 0.0
    return values


def largest_distance(histograms: Histograms, values: NDArray[np.float64]) -> float:
    """Largest l2 distance between the answers for ``values`` and for ``values`` without one record."""
    whole = histograms(values)
    return max(float(np.linalg.norm(whole - histograms(np.delete(values, index, axis=0)))) for index in range(len(values)))


def histograms_over_the_range(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The planted bug: bins between the smallest and largest value, so that one record moves all of them."""
    return np.stack([np.histogram(column, bins=BINS)[0] for column in values.T]).astype(np.int64)


@pytest.mark.parametrize("features", [1, 7, 30])
def test_sensitivity_is_the_root_of_the_number_of_features(features: int) -> None:
    values = awkward_values(80, features)
    assert largest_distance(range_histograms, values) == pytest.approx(math.sqrt(features), rel=1e-12)
    if features == 7:
        assert largest_distance(histograms_over_the_range, values) > 1.01 * math.sqrt(7)


@pytest.mark.parametrize("error", [0.0, 0.01, -0.01])
def test_noise_deviation_and_planted_percent(error: float) -> None:
    """A million draws estimate the deviation to 0.07 %: half a percent is seven deviations away from either side."""
    wanted = 20.0 * math.sqrt(30)
    draws = gaussian_noise(KEY, 3, deviation=wanted * (1 + error), count=1_000_000)
    measured = float(np.sqrt(np.mean(draws**2)))
    assert (abs(measured / wanted - 1) < 0.005) == (error == 0.0)
    assert abs(float(draws.mean())) < 6 * wanted * 1.02 / 1000


def test_noise_is_gaussian_and_streams_differ() -> None:
    draws = gaussian_noise(KEY, 0, deviation=1.0, count=200_000)
    assert kstest(draws, "norm").pvalue > 1e-6
    assert np.isfinite(draws).all()
    other = gaussian_noise(KEY, 1, deviation=1.0, count=200_000)
    assert abs(float(np.mean(draws * other))) < 6 / math.sqrt(200_000)


def test_the_mechanism_uses_noise_of_the_declared_size(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    def recorded(key: Key, counter: int, *, deviation: float, count: int) -> NDArray[np.float64]:
        seen.append(deviation)
        return gaussian_noise(key, counter, deviation=deviation, count=count)

    monkeypatch.setattr(scaling_module, "gaussian_noise", recorded)
    scaling = private_scaling(np.full((5_000, 4), 3.0), ("a", "b", "c", "d"), 2.0, KEY)
    assert seen == [2.0 * largest_distance(range_histograms, np.ones((3, 4)))] * 4
    assert scaling.spending == RangeSpending(2.0)


def test_bins_hold_their_values_in_order() -> None:
    edges = bin_edges()
    assert len(edges) == BINS + 1
    assert (np.diff(edges) > 0).all()
    values = np.concatenate([awkward_values(400, 1)[:, 0], edges[:-1], np.nextafter(edges, 0), [5e-324, -5e-324]])
    inside = values[(values > edges[0]) & (values < edges[-1])]
    bins = bin_of(inside)
    assert (edges[bins] <= inside).all()
    assert (inside <= edges[bins + 1]).all()
    assert (np.diff(bin_of(np.sort(values))) >= 0).all()
    assert bin_of(np.array([-1e300, 0.0, -0.0, 1e300])).tolist() == [0, BINS // 2, BINS // 2, BINS - 1]


def test_estimate_covers_a_large_sample() -> None:
    generator = np.random.default_rng(11)
    count = 50_000
    columns = [generator.uniform(20, 90, count), generator.uniform(-3, 5, count), generator.integers(0, 2, count) * 1.0]
    values = np.stack([*columns, np.full(count, -4.5)], axis=1)
    scaling = private_scaling(values, ("age", "score", "flag", "constant"), 20.0, KEY)
    assert scaling.source == "private"
    assert scaling.low == pytest.approx((16.0, -4.0, 0.0, -8.0), abs=1e-9)
    assert scaling.high == pytest.approx((128.0, 8.0, 2.0, -4.0), abs=1e-9)
    assert (values >= np.array(scaling.low)).all()
    assert (values <= np.array(scaling.high)).all()


def test_too_few_records_give_the_declared_fallback_with_a_warning() -> None:
    with pytest.warns(RangeWarning, match="age"):
        scaling = private_scaling(np.full((30, 1), 40.0), ("age",), 20.0, KEY)
    assert (scaling.low[0], scaling.high[0]) == FALLBACK


def test_empty_bins_seldom_pass() -> None:
    """Over 600 estimates from no records, the union bound allows 0.6 false bins; ten would have probability below 1e-8."""
    threshold = keep_threshold(20.0 * math.sqrt(3), 3)
    noise = [gaussian_noise(KEY, trial, deviation=20.0 * math.sqrt(3), count=3 * BINS) for trial in range(600)]
    assert sum(bool((draws > threshold).any()) for draws in noise) < 10
    assert sum(bool((draws > 0.6 * threshold).any()) for draws in noise) > 10


def test_same_key_same_bounds_and_other_key_other_noise() -> None:
    values = np.random.default_rng(1).normal(size=(3_000, 2))
    first, again = (private_scaling(values, ("a", "b"), 20.0, KEY) for _ in range(2))
    assert first == again
    own, other = (gaussian_noise(key, 0, deviation=1.0, count=9) for key in (KEY, Key.from_system()))
    assert not np.array_equal(own, other)
