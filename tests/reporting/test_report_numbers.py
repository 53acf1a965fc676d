"""Shown numbers never promise more than stored ones; a rule that rounds to nearest is caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinproof.evaluation.accuracy import Interval
from twinproof.reporting.numbers import (
    duration_text,
    epsilon_number,
    epsilon_text,
    factor_text,
    probability_text,
    radius_number,
    radius_range,
    radius_text,
    setting_text,
    share_range,
    share_text,
    share_text_up,
)

STORED = st.integers(min_value=0, max_value=40_000_000).map(lambda millionths: millionths / 1_000_000)


def check_radius(shown: Callable[[float], str], value: float) -> None:
    assert float(shown(value)) <= value
    assert value - float(shown(value)) < 0.001 + 1e-12


def check_epsilon(shown: Callable[[float], str], value: float) -> None:
    assert float(shown(value)) >= value
    assert float(shown(value)) - value < 0.001 + 1e-12


@given(STORED)
def test_radii_are_shown_rounded_down(value: float) -> None:
    check_radius(radius_text, value)


@given(STORED)
def test_epsilons_are_shown_rounded_up(value: float) -> None:
    check_epsilon(epsilon_text, value)


def test_the_checks_catch_rounding_to_nearest() -> None:
    def nearest(value: float) -> str:
        return format(value, ".3f")

    with pytest.raises(AssertionError):
        check_radius(nearest, 2.9999)
    with pytest.raises(AssertionError):
        check_epsilon(nearest, 3.0001)


@given(STORED)
def test_numbers_for_files_do_not_move_a_second_time(value: float) -> None:
    assert radius_number(value) == value == epsilon_number(value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (radius_text(2.9999), "2.999"),
        (radius_text(2.9999, 2), "2.99"),
        (radius_text(0.3), "0.300"),
        (radius_text(None), "–"),
        (epsilon_text(2.9999, 2), "3.00"),
        (epsilon_text(3.0001, 2), "3.01"),
        (epsilon_text(2.1, 2), "2.10"),
        (epsilon_text(None), "–"),
        (share_text(0.9999), "99.9 %"),
        (share_text(0.29), "29.0 %"),
        (share_text(1.0), "100.0 %"),
        (share_text_up(0.0001), "0.1 %"),
        (share_text_up(0.07), "7.0 %"),
        (share_range(Interval(0.5, 0.40019, 0.60001, 0.95)), "40.0 – 60.1 %"),
        (radius_range(Interval(0.5, 0.4009, 0.6001, 0.95)), "0.400 – 0.601"),
        (probability_text(1e-5), "1e-5"),
        (probability_text(0.001), "0.001"),
        (probability_text(0.0012341), "0.00124"),
        (probability_text(None), "–"),
        (factor_text(0.0), "1.00"),
        (factor_text(1.0), "2.72"),
        (factor_text(11.0), "59900"),
        (setting_text(10_000), "10,000"),
        (setting_text(0.0625), "0.0625"),
        (setting_text(None), "–"),
        (duration_text(59.96), "60.0 s"),
        (duration_text(600), "10.0 min"),
        (duration_text(36_000), "10.0 h"),
        (duration_text(None), "–"),
    ],
)
def test_text(text: str, wanted: str) -> None:
    assert text == wanted
