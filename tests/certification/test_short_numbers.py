"""Few digits, never below: for bounds that two machines compute."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinproof.certification.confidence import few_digits_above


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
