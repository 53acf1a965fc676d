"""Clipping, flat and per-sample adaptive: no record is scaled above the bound, in exact arithmetic, also where floats end."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from private_path import WatchedExecution, make_plan, new_ledger
from test_privacy_sensitivity import TOLERANCE, make_path, worst_move
from torch import Tensor

from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.privacy.plan import ClipRule, PrivateExecution, clip_weights, flat_clip_weights, psac_weights

RULES = (ClipRule.PSAC_PAPER, ClipRule.PSAC_CODE)
norms = st.floats(min_value=0, max_value=1e150, allow_subnormal=True)
thresholds = st.floats(min_value=1e-30, max_value=1e30)
constants = st.floats(min_value=1e-30, max_value=1e30)
SLACK = 1 + Fraction(2) ** -50


def weight_of(squared: float, threshold: float, r: float, rule: ClipRule) -> float:
    return float(clip_weights(torch.tensor([squared], dtype=torch.float64), threshold, rule, r)[0])


def is_bounded(squared: float, threshold: float, weight: float, rule: ClipRule) -> bool:
    """weight * norm <= threshold, in exact arithmetic on squares: for PSAC not one bit above, for flat clipping 2^-50."""
    slack = SLACK if rule is ClipRule.FLAT else 1
    return Fraction(weight) ** 2 * Fraction(squared) <= (Fraction(threshold) * slack) ** 2


@pytest.mark.parametrize("rule", tuple(ClipRule))
@settings(max_examples=500, deadline=None, derandomize=True)
@given(norm=norms, threshold=thresholds, r=constants)
def test_the_scaled_norm_is_never_above_the_threshold(rule: ClipRule, norm: float, threshold: float, r: float) -> None:
    weight = weight_of(norm * norm, threshold, r, rule)
    assert weight >= 0
    assert is_bounded(norm * norm, threshold, weight, rule)
    if rule is not ClipRule.FLAT:
        return
    if norm <= threshold * (1 - 1e-12):
        assert weight == 1, "nothing is shortened without need"
    elif math.isfinite(norm * norm) and norm * norm > 1e-290:
        assert weight * norm >= threshold * (1 - 1e-12) or weight == 1


@pytest.mark.parametrize("rule", tuple(ClipRule))
def test_extreme_norms(rule: ClipRule) -> None:
    for squared in (5e-324, 1e-310, 2.3e-308, 1.0, 1e300, 1.7e308):
        weight = weight_of(squared, 0.5, 0.01, rule)
        assert is_bounded(squared, 0.5, weight, rule)
        assert rule is not ClipRule.FLAT or (weight == 1) == (squared <= 0.25)


@pytest.mark.parametrize("rule", tuple(ClipRule))
@pytest.mark.parametrize("squared", [float("nan"), float("inf"), -float("inf"), -1.0])
def test_a_norm_that_is_no_number_counts_nothing(rule: ClipRule, squared: float) -> None:
    mixed = torch.tensor([0.1, squared, 4.0, 1e20], dtype=torch.float64)
    weights = clip_weights(mixed, 1.0, rule, 0.01)
    assert weights[1] == 0
    assert torch.equal(weights[[0, 2, 3]], clip_weights(mixed[[0, 2, 3]], 1.0, rule, 0.01)), "no other weight changes"
    assert clip_weights(mixed[:0], 1.0, rule, 0.01).shape == (0,)


def test_flat_is_flat_and_norms_are_treated_in_float64() -> None:
    squares = torch.tensor([0.0, 0.3, 3.0, 1e38], dtype=torch.float32)
    weights = clip_weights(squares, 1e-3, ClipRule.FLAT, 0.01)
    assert torch.equal(weights, flat_clip_weights(squares, 1e-3))
    assert is_bounded(float(squares[3]), 1e-3, float(weights[3]), ClipRule.FLAT)
    assert all(clip_weights(squares, 0.7, rule, 0.01).dtype == torch.float64 for rule in ClipRule)


def test_planted_weights_in_float32_and_without_room_are_caught() -> None:
    """Their rounding may go either way; the same check sees it on ordinary norms."""

    def all_bounded(squares: Tensor, weights: Tensor, rule: ClipRule) -> bool:
        pairs = zip(squares.tolist(), weights.tolist(), strict=True)
        return all(is_bounded(square, 1.0, weight, rule) for square, weight in pairs)

    squares = torch.linspace(1.1, 50.0, 200, dtype=torch.float64)
    right = flat_clip_weights(squares, 1.0)
    assert all_bounded(squares, right, ClipRule.FLAT)
    assert not all_bounded(squares, right.to(torch.float32).to(torch.float64), ClipRule.FLAT)
    squares = torch.linspace(1e9, 9e9, 400, dtype=torch.float64)
    lengths = squares.sqrt()
    assert all_bounded(squares, psac_weights(squares, 1.0, 1e-12), ClipRule.PSAC_PAPER)
    assert not all_bounded(squares, 1 / (lengths + 1e-12 / (lengths + 1e-12)), ClipRule.PSAC_PAPER)


# Scaled norm over the threshold: the paper's formula as in our table of guarantees; the program's by hand.
NUMBERS = [
    (1.0, 0.01, 0.990196, 0.980392),
    (1.0, 0.1, 0.916667, 0.833333),
    (1.0, 1.0, 0.666667, 0.333333),
    (0.01, 0.01, 0.019608, 0.009804),
    (0.01, 0.1, 0.010880, 0.000989),
    (0.01, 1.0, 0.009999, 0.000099),
]


@pytest.mark.parametrize(("norm", "r", "paper", "code"), NUMBERS)
@pytest.mark.parametrize("threshold", [0.1, 1.0, 30.0])
def test_both_formulas_give_their_numbers(norm: float, r: float, paper: float, code: float, threshold: float) -> None:
    found = [weight_of(norm * norm, threshold, r, rule) * norm / threshold for rule in RULES]
    assert found == pytest.approx([paper, code], abs=5e-7)


@pytest.mark.parametrize("rule", RULES)
def test_the_scaled_norm_grows_with_the_norm(rule: ClipRule) -> None:
    squares = torch.logspace(-12, 12, 400, dtype=torch.float64)
    scaled = clip_weights(squares, 0.1, rule, 0.01) * squares.sqrt()
    assert bool((scaled[1:] > scaled[:-1]).all())
    assert float(scaled[-1]) > 0.0999
    of_zero = weight_of(0.0, 0.3, 0.01, rule)
    assert of_zero == pytest.approx(0.3 if rule is ClipRule.PSAC_PAPER else 0.0, rel=1e-12), "a gradient of zero"


@pytest.mark.parametrize("rule", RULES)
def test_a_record_moves_the_sum_by_at_most_the_clipping_norm(tmp_path: Path, rule: ClipRule) -> None:
    """On the real training path, with records that hold NaN, infinities and huge numbers among ordinary ones."""
    path = make_path(tmp_path)
    worst = worst_move(replace(path, plan=replace(path.plan, clip_rule=rule)), count=60)
    assert 0.9 < worst <= TOLERANCE


class BracketClosedTooEarly(WatchedExecution):
    """Planted: the paper's formula read as threshold / n + r / (n + r), which does not shrink with the threshold."""

    def clip_weights(self, squared_norms: Tensor) -> Tensor:
        norms = squared_norms.sqrt()
        weights = self.plan.clip_norm / norms + 0.01 / (norms + 0.01)
        return torch.where(torch.isfinite(norms) & (norms > 0), weights, torch.zeros_like(weights))


def test_planted_wrong_bracket_is_caught(tmp_path: Path) -> None:
    path = replace(make_path(tmp_path), execution=BracketClosedTooEarly)
    assert worst_move(path, count=60, enough=TOLERANCE) > 1.001


def test_the_execution_uses_the_rule_of_its_plan(tmp_path: Path) -> None:
    squares = torch.tensor([0.0, 1e-4, 0.25, 100.0], dtype=torch.float64)
    for rule in ClipRule:
        plan = make_plan(clip_rule=rule, clip_r=0.2, clip_norm=0.5)
        execution = PrivateExecution(plan, Key.from_seed(0), new_ledger(tmp_path, rule), records=2, parameters=9)
        assert torch.equal(execution.clip_weights(squares), clip_weights(squares, plan.clip_threshold(9), rule, 0.2))


def test_a_constant_or_rule_without_meaning_is_refused() -> None:
    for r in (0.0, -0.01, float("nan"), float("inf"), 1e-31):
        with pytest.raises(ConfigError, match="clip_r cannot be used"):
            make_plan(clip_r=r)
    with pytest.raises(ConfigError, match="clip_rule cannot be used"):
        make_plan(clip_rule="automatic")
