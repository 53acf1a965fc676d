"""Shown numbers never promise more than stored ones; a rule that rounds to nearest is caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinproof.evaluation.accuracy import Interval
from twinproof.reporting.numbers import (
    down,
    duration,
    factor,
    file_down,
    file_up,
    percent_down,
    percent_range,
    percent_up,
    probability,
    radius_range,
    setting,
    up,
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
    check_radius(down, value)


@given(STORED)
def test_epsilons_are_shown_rounded_up(value: float) -> None:
    check_epsilon(up, value)


def test_the_checks_catch_rounding_to_nearest() -> None:
    def nearest(value: float) -> str:
        return format(value, ".3f")

    with pytest.raises(AssertionError):
        check_radius(nearest, 2.9999)
    with pytest.raises(AssertionError):
        check_epsilon(nearest, 3.0001)


@given(STORED)
def test_numbers_for_files_do_not_move_a_second_time(value: float) -> None:
    assert file_down(value) == value == file_up(value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (down(2.9999), "2.999"),
        (down(2.9999, 2), "2.99"),
        (down(0.3), "0.300"),
        (down(None), "–"),
        (up(2.9999, 2), "3.00"),
        (up(3.0001, 2), "3.01"),
        (up(2.1, 2), "2.10"),
        (up(None), "–"),
        (percent_down(0.9999), "99.9 %"),
        (percent_down(0.29), "29.0 %"),
        (percent_down(1.0), "100.0 %"),
        (percent_up(0.0001), "0.1 %"),
        (percent_up(0.07), "7.0 %"),
        (percent_range(Interval(0.5, 0.40019, 0.60001, 0.95)), "40.0 – 60.1 %"),
        (radius_range(Interval(0.5, 0.4009, 0.6001, 0.95)), "0.400 – 0.601"),
        (probability(1e-5), "1e-5"),
        (probability(0.001), "0.001"),
        (probability(0.0012341), "0.00124"),
        (probability(None), "–"),
        (factor(0.0), "1.00"),
        (factor(1.0), "2.72"),
        (factor(11.0), "59900"),
        (setting(10_000), "10,000"),
        (setting(0.0625), "0.0625"),
        (setting(None), "–"),
        (duration(59.96), "60.0 s"),
        (duration(600), "10.0 min"),
        (duration(36_000), "10.0 h"),
    ],
)
def test_text(text: str, wanted: str) -> None:
    assert text == wanted
