"""Attacked inputs on stored levels: inside the ball in exact arithmetic, and no weaker than they must be."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from twinproof.attacks.threat import Threat
from twinproof.errors import CheckFailed
from twinproof.evaluation import attack_results as stored_levels
from twinproof.evaluation.attack_results import budget, lengths_of, stored_inside


def _length(moves: np.ndarray[Any, Any], norm: str, levels: int) -> list[Fraction]:
    """Exact lengths (squared for l2), by Python's integers."""
    rows = [[abs(int(move)) for move in row] for row in moves.reshape(len(moves), -1)]
    if norm == "l2":
        return [Fraction(sum(move**2 for move in row), levels**2) for row in rows]
    return [Fraction(max(row) if norm == "linf" else sum(row), levels) for row in rows]


def _problem(seed: int, levels: int, norm: str, size: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    original = torch.randint(0, levels + 1, (6, 3, 5), generator=generator)
    away = torch.randn((6, 3, 5), generator=generator) * size * 3
    exact = original.to(torch.float32) / levels
    return Threat(norm, size).admit(exact + away, exact), original


@settings(max_examples=120, deadline=None)
@given(
    st.integers(0, 2**31),
    st.sampled_from([1, 16, 255, 65_535]),
    st.sampled_from(["linf", "l2", "l1"]),
    st.sampled_from([0.01, 0.05, 0.1, 0.25, 0.3, 0.6, 1.0, 4.0]),
)
def test_inside_the_ball_and_the_range_and_near_the_attack(seed: int, levels: int, norm: str, size: float) -> None:
    attacked, original = _problem(seed, levels, norm, size)
    stored = stored_inside(attacked, original, levels, norm, size)
    allowed = Fraction(str(size)) ** (2 if norm == "l2" else 1)
    assert all(length <= allowed for length in _length((stored - original).numpy(), norm, levels))
    assert int(stored.min()) >= 0
    assert int(stored.max()) <= levels
    moved = attacked.double() * levels - original
    assert bool(((stored - original).double() - moved).abs().max() < 1.02)
    assert bool(((stored - original).double() * moved >= -1e-6).all()), "never against the attack"


def test_coarse_levels_keep_the_strongest_coordinates() -> None:
    """On 16 levels, 0.25 in l2 is sixteen single levels; rounding everything towards the original would leave none."""
    original = torch.full((1, 64), 8)
    pull = torch.linspace(0.1, 1.0, 64)
    attacked = (8 / 16 + 0.25 * pull / pull.norm()).float().unsqueeze(0)
    stored = stored_inside(attacked, original, 16, "l2", 0.25)
    assert torch.equal((stored - original)[0], torch.tensor([0] * 48 + [1] * 16))
    assert lengths_of(stored - original, "l2", 16) == [0.25]
    assert int((attacked * 16 - 8).trunc().abs().sum()) == 0, "the planted rounding loses the whole attack"


@pytest.mark.parametrize(
    ("norm", "size", "levels", "most"),
    [("linf", 0.6, 255, 153), ("linf", 0.3, 10, 3), ("l1", 0.1, 255, 25), ("l2", 0.25, 16, 16), ("l2", 0.5, 255, 16_256)],
)
def test_sizes_mean_the_decimals_that_were_written(norm: str, size: float, levels: int, most: int) -> None:
    """0.6 as a float lies below six tenths, and 153 of 255 levels would be lost to it."""
    assert budget(norm, size, levels) == most


@pytest.mark.parametrize("levels", [16, 255, 65_535])
def test_untouched_inputs_stay(levels: int) -> None:
    original = torch.arange(0, levels, max(1, levels // 255)).unsqueeze(0)
    for norm in ("linf", "l2", "l1"):
        assert torch.equal(stored_inside(original.float() / levels, original, levels, norm, 1.0), original)


def test_a_planted_rounding_to_the_nearest_level_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    attacked, original = _problem(3, 16, "l2", 0.3)
    monkeypatch.setattr(stored_levels, "_grown", lambda steps, lost, norm, most: steps + 1)
    with pytest.raises(CheckFailed, match="left the ball"):
        stored_inside(attacked, original, 16, "l2", 0.3)
