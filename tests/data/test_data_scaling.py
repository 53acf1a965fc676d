from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from twinproof.data.record import Records, Scaling
from twinproof.data.scaling import FEATURE_LEVELS, check_finite, check_fits, declared_scaling, scaling_of_test, to_levels
from twinproof.errors import ConfigError, DataError

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
    assert scaling.source == "test"
    assert scaling.spending is None
    assert all(low < smallest for low, smallest in zip(scaling.low, values.min(axis=0), strict=True))
    assert all(high > largest for high, largest in zip(scaling.high, values.max(axis=0), strict=True))
    assert to_levels(values, scaling)[:, 1].tolist() == [32768, 32768]
    assert scaling.low[0] == pytest.approx(0.9)
    assert scaling.high[0] == pytest.approx(3.1)


def test_test_bounds_that_overflow() -> None:
    with pytest.raises(ConfigError, match="no usable bounds"):
        scaling_of_test(np.array([[-1.7e308], [1.7e308]]))


def test_declared_bounds_by_name_and_for_the_rest() -> None:
    scaling = declared_scaling({"b": (0.0, 2.0), "*": (-1.0, 1.0)}, ("a", "b", "c"))
    assert (scaling.low, scaling.high, scaling.source) == ((-1.0, 0.0, -1.0), (1.0, 2.0, 1.0), "declared")


def test_declared_bounds_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="do not fit") as caught:
        declared_scaling({"a": (0.0, 1.0), "hight": (0.0, 1.0)}, ("a", "height", "weight"))
    assert caught.value.got == "unknown: hight; missing: height, weight"


def test_bounds_of_other_data() -> None:
    with pytest.raises(ConfigError, match="other data"):
        check_fits(Scaling((0.0,), (1.0,), "test"), ("a", "b"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(value: float) -> None:
    inputs = np.zeros((3, 2))
    inputs[1, 1] = value
    with pytest.raises(DataError, match="record 1, feature 'b'"):
        check_finite(Records(inputs, np.zeros(3), "sample"), ("a", "b"))
