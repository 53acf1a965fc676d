"""The clipping factor bounds every record's length, also where floats end."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinproof.privacy.plan import flat_clip_weights

SLACK = 1 + Fraction(2) ** -50
norms = st.floats(min_value=0, max_value=1e150, allow_subnormal=True)
thresholds = st.floats(min_value=1e-30, max_value=1e30)


def weight_of(squared: float, threshold: float) -> float:
    return float(flat_clip_weights(torch.tensor([squared], dtype=torch.float64), threshold)[0])


def is_bounded(squared: float, threshold: float, weight: float) -> bool:
    """weight * norm <= threshold (1 + 2^-50), in exact arithmetic on squares."""
    return Fraction(weight) ** 2 * Fraction(squared) <= (Fraction(threshold) * SLACK) ** 2


@settings(max_examples=1000, deadline=None, derandomize=True)
@given(norm=norms, threshold=thresholds)
def test_the_weighted_norm_stays_below_the_threshold(norm: float, threshold: float) -> None:
    squared = norm * norm
    weight = weight_of(squared, threshold)
    assert 0 <= weight <= 1
    assert is_bounded(squared, threshold, weight)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(norm=norms, threshold=thresholds)
def test_nothing_is_shortened_without_need(norm: float, threshold: float) -> None:
    weight = weight_of(norm * norm, threshold)
    if norm <= threshold * (1 - 1e-12):
        assert weight == 1
    elif math.isfinite(norm * norm) and norm * norm > 1e-290:
        assert weight * norm >= threshold * (1 - 1e-12) or weight == 1


@pytest.mark.parametrize("squared", [0.0, 5e-324, 1e-310, 2.3e-308, 1.0, 1e300, 1.7e308])
def test_extreme_norms(squared: float) -> None:
    weight = weight_of(squared, 0.5)
    assert is_bounded(squared, 0.5, weight)
    assert (weight == 1) == (squared <= 0.25)


@pytest.mark.parametrize("squared", [float("nan"), float("inf"), -float("inf"), -1.0])
def test_a_norm_that_is_no_number_counts_nothing(squared: float) -> None:
    assert weight_of(squared, 1.0) == 0


def test_one_bad_norm_changes_no_other_weight() -> None:
    good = torch.tensor([0.1, 4.0, 1e20], dtype=torch.float64)
    mixed = torch.tensor([0.1, float("nan"), 4.0, float("inf"), 1e20], dtype=torch.float64)
    assert torch.equal(flat_clip_weights(mixed, 1.0)[[0, 2, 4]], flat_clip_weights(good, 1.0))


def test_float32_norms_are_treated_in_float64() -> None:
    weights = flat_clip_weights(torch.tensor([3.0, 1e38], dtype=torch.float32), 1e-3)
    assert weights.dtype == torch.float64
    assert is_bounded(float(torch.tensor(1e38)), 1e-3, float(weights[1]))


def test_planted_weights_in_float32_are_caught() -> None:
    """Weights taken in float32 pass the bound by rounding; the same check sees it on ordinary norms."""
    squares = torch.linspace(1.1, 50.0, 200, dtype=torch.float64)
    right = flat_clip_weights(squares, 1.0)
    wrong = flat_clip_weights(squares, 1.0).to(torch.float32).to(torch.float64)
    assert all(is_bounded(float(square), 1.0, float(weight)) for square, weight in zip(squares, right, strict=True))
    assert not all(is_bounded(float(square), 1.0, float(weight)) for square, weight in zip(squares, wrong, strict=True))


def test_no_records_give_no_weights() -> None:
    assert flat_clip_weights(torch.zeros(0, dtype=torch.float64), 1.0).shape == (0,)
