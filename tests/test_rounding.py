"""Rounding goes in the safe direction for every float there is."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twinproof.guarantee import format_down, format_up, round_down, round_up

finite = st.floats(allow_nan=False, allow_infinity=False)
places = st.integers(min_value=0, max_value=12)
PROPERTY = settings(max_examples=600, deadline=None, derandomize=True)
EXTREMES = (5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -1.7976931348623157e308, 0.0, -0.0)


@PROPERTY
@given(value=finite, digits=places)
@example(value=0.1 + 0.2, digits=6)
@example(value=2.675, digits=2)
@example(value=1 - 2**-53, digits=6)
def test_down_is_below_and_up_is_above(value: float, digits: int) -> None:
    unit = Fraction(1, 10**digits)
    down, up = format_down(value, digits), format_up(value, digits)
    assert round_down(value, digits) <= value <= round_up(value, digits)
    assert float(down) <= value <= float(up)
    # In exact numbers a text may pass the value only where it reads back as that very float (0.3 is below three tenths).
    assert Fraction(down) <= Fraction(value) or float(down) == value
    assert Fraction(up) >= Fraction(value) or float(up) == value
    assert abs(Fraction(value) - Fraction(down)) < unit
    assert abs(Fraction(up) - Fraction(value)) < unit


@PROPERTY
@given(value=finite, digits=places)
def test_rounding_again_changes_nothing(value: float, digits: int) -> None:
    """What a file holds is rounded once more when it is shown: it must not creep."""
    for function in (round_down, round_up):
        once = function(value, digits)
        assert round_down(once, digits) == round_up(once, digits) == once


@pytest.mark.parametrize(
    ("value", "down", "up"),
    [
        (1.0, "1.000000", "1.000000"),
        (0.1234564, "0.123456", "0.123457"),
        (0.1234565, "0.123456", "0.123457"),
        (1e-9, "0.000000", "0.000001"),
        (-1e-9, "-0.000001", "-0.000000"),
        (4.3771781, "4.377178", "4.377179"),
        (123456789.1234567, "123456789.123456", "123456789.123457"),
    ],
)
def test_examples(value: float, down: str, up: str) -> None:
    assert (format_down(value), format_up(value)) == (down, up)
    assert (round_down(value), round_up(value)) == (float(down), float(up))


@pytest.mark.parametrize("function", [round_down, round_up])
def test_what_is_not_finite_stays(function: Callable[[float], float]) -> None:
    assert function(math.inf) == math.inf
    assert function(-math.inf) == -math.inf
    assert math.isnan(function(math.nan))
    assert format_up(math.inf) == format_down(math.inf) == "inf"


def test_planted_rounding_to_nearest_is_caught() -> None:
    values = [0.1234567, 0.1234563, 2.0000006, 3.9999994]
    assert not all(round(value, 6) <= value for value in values)
    assert not all(round(value, 6) >= value for value in values)
    assert all(round_down(value) <= value <= round_up(value) for value in values)


def test_planted_scaling_by_a_power_of_ten_is_caught() -> None:
    """The usual floor(x * 10^d) / 10^d rounds in the multiplication and can come out above x."""
    values = [k / 1000 - 2**-54 for k in range(1, 500)]
    assert any(math.floor(value * 1e6) / 1e6 > value for value in values)
    assert all(round_down(value) <= value for value in values)
