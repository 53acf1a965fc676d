"""Per-sample adaptive clipping, by the paper's formula and by its program's: never above the bound, in exact arithmetic."""

from __future__ import annotations

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


def weight_of(squared: float, threshold: float, r: float, rule: ClipRule) -> float:
    return float(clip_weights(torch.tensor([squared], dtype=torch.float64), threshold, rule, r)[0])


def is_bounded(squared: float, threshold: float, weight: float) -> bool:
    """weight * norm <= threshold in exact arithmetic on squares: not one bit above."""
    return Fraction(weight) ** 2 * Fraction(squared) <= Fraction(threshold) ** 2


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=300, deadline=None, derandomize=True)
@given(norm=norms, threshold=thresholds, r=constants)
def test_the_scaled_norm_is_never_above_the_threshold(rule: ClipRule, norm: float, threshold: float, r: float) -> None:
    weight = weight_of(norm * norm, threshold, r, rule)
    assert weight >= 0
    assert is_bounded(norm * norm, threshold, weight)


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


@pytest.mark.parametrize(("rule", "weight"), [(ClipRule.PSAC_PAPER, 0.3), (ClipRule.PSAC_CODE, 0.0)])
def test_a_gradient_of_zero_has_a_finite_weight(rule: ClipRule, weight: float) -> None:
    assert weight_of(0.0, 0.3, 0.01, rule) == pytest.approx(weight, rel=1e-12)


@pytest.mark.parametrize("rule", tuple(ClipRule))
@pytest.mark.parametrize("squared", [float("nan"), float("inf"), -float("inf"), -1.0])
def test_a_norm_that_is_no_number_counts_nothing(rule: ClipRule, squared: float) -> None:
    mixed = torch.tensor([0.1, squared, 4.0], dtype=torch.float64)
    weights = clip_weights(mixed, 1.0, rule, 0.01)
    assert weights[1] == 0
    assert torch.equal(weights[[0, 2]], clip_weights(mixed[[0, 2]], 1.0, rule, 0.01)), "nobody else's weight changes"


@pytest.mark.parametrize("squared", [5e-324, 1e-310, 2.3e-308, 1e300, 1.7e308])
@pytest.mark.parametrize("rule", RULES)
def test_extreme_norms(rule: ClipRule, squared: float) -> None:
    assert is_bounded(squared, 0.5, weight_of(squared, 0.5, 0.01, rule))


def test_flat_is_flat_and_norms_are_treated_in_float64() -> None:
    squares = torch.tensor([0.0, 0.3, 3.0, 1e38], dtype=torch.float32)
    assert torch.equal(clip_weights(squares, 0.7, ClipRule.FLAT, 0.01), flat_clip_weights(squares, 0.7))
    assert all(clip_weights(squares, 0.7, rule, 0.01).dtype == torch.float64 for rule in ClipRule)


def without_room(squares: Tensor, threshold: float, r: float) -> Tensor:
    """Planted: the formula as it stands, whose rounding may go either way."""
    norms = squares.sqrt()
    return threshold / (norms + r / (norms + r))


def test_planted_formula_without_room_for_rounding_is_caught() -> None:
    squares = torch.linspace(1e9, 9e9, 400, dtype=torch.float64)
    right, wrong = psac_weights(squares, 1.0, 1e-12), without_room(squares, 1.0, 1e-12)
    assert all(is_bounded(float(square), 1.0, float(weight)) for square, weight in zip(squares, right, strict=True))
    assert not all(is_bounded(float(square), 1.0, float(weight)) for square, weight in zip(squares, wrong, strict=True))


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


@pytest.mark.parametrize("r", [0.0, -0.01, float("nan"), float("inf"), 1e-31])
def test_a_constant_without_meaning_is_refused(r: float) -> None:
    with pytest.raises(ConfigError, match="clip_r cannot be used"):
        make_plan(clip_r=r)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown clip_rule"):
        make_plan(clip_rule="automatic")
