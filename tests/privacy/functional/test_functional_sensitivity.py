"""Tries to refute the counted sensitivities, with random and with optimised records; and does refute the published ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from twinproof.errors import ConfigError
from twinproof.privacy.functional.feature_ball import LEVELS, FeatureBall
from twinproof.privacy.functional.polynomials import output_polynomial, reconstruction_polynomial
from twinproof.privacy.functional.sensitivity import (
    class_sums_sensitivity,
    polynomial_sensitivity,
    products_sensitivity,
    reconstruction_levels_sensitivity,
    reconstruction_sensitivity,
)
from twinproof.privacy.sensitivity.bound import Norm
from twinproof_papers.published.formulas import paper_delta_l2, paper_delta_r

CLASSES = 3
BALLS = [FeatureBall(norm, radius, features) for norm in Norm for radius, features in ((1.0, 6), (2.5, 1), (0.5, 9))]
Movement = Callable[[Tensor], Tensor]


def monomial_movement(ball: FeatureBall) -> Movement:
    """|coefficients|_1 of each record alone: how far it moves the polynomial by coming or going."""

    def movement(records: Tensor) -> Tensor:
        rows = [output_polynomial(ball.clip(one[None]), torch.tensor([1]), CLASSES).monomials() for one in records]
        return torch.stack(rows).abs().sum(1)

    return movement


def product_movement(ball: FeatureBall) -> Movement:
    """In squared levels."""
    rows, columns = torch.triu_indices(ball.features, ball.features)

    def movement(records: Tensor) -> Tensor:
        levels = ball.levels(records)
        return (levels[:, rows] * levels[:, columns]).abs().sum(1)

    return movement


def sum_movement(ball: FeatureBall) -> Movement:
    """In levels."""
    return lambda records: ball.levels(records).abs().sum(1)


def worst(movement: Movement, features: int, seed: int, rounds: int = 60) -> float:
    """The farthest found: random records, then the best ones changed at random, keeping what moves more."""
    generator = torch.Generator().manual_seed(seed)
    count = 40
    scales = 10.0 ** torch.linspace(-2, 3, count, dtype=torch.float64)[:, None]
    best = torch.randn(count, features, dtype=torch.float64, generator=generator) * scales
    best[: features + 1] = 100 * torch.cat([torch.eye(features), torch.ones(1, features)]).double()[: count - 1]
    found = movement(best)
    for step in range(rounds):
        size = 2.0 ** -(step / 10)
        changed = best * (1 + size * torch.randn(best.shape, dtype=torch.float64, generator=generator))
        tried = movement(changed)
        better = tried > found
        best, found = torch.where(better[:, None], changed, best), torch.where(better, tried, found)
    return float(found.max())


COUNTED: dict[str, tuple[Callable[[FeatureBall], Movement], Callable[[FeatureBall], float]]] = {
    "class sums": (sum_movement, class_sums_sensitivity),
    "products": (product_movement, products_sensitivity),
    "polynomial": (monomial_movement, lambda ball: polynomial_sensitivity(ball, CLASSES)),
}


@pytest.mark.parametrize("ball", BALLS, ids=lambda ball: f"{ball.norm}-{ball.features}")
@pytest.mark.parametrize("name", COUNTED)
def test_no_record_moves_more_than_is_counted_and_one_moves_as_much(name: str, ball: FeatureBall) -> None:
    movement, counted = COUNTED[name]
    found = worst(movement(ball), ball.features, seed=ball.features, rounds=12 if name == "polynomial" else 60)
    assert found <= counted(ball)
    assert found >= counted(ball) * (1 - 2e-3), "nothing much smaller would be true"


def test_planted_counts_are_exceeded() -> None:
    """Products without their squares, one class in place of all, l2 in place of l1."""
    ball = FeatureBall(Norm.LINF, 1.0, 6)
    products = worst(product_movement(ball), 6, seed=1)
    assert products > (ball.largest_sum**2 - ball.largest_square) // 2
    assert products > ball.largest_square
    assert worst(monomial_movement(ball), 6, seed=1, rounds=5) > polynomial_sensitivity(ball, 1)
    assert worst(sum_movement(ball), 6, seed=1) > math.isqrt(ball.largest_square)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.2, 0.9)])
def test_the_reconstruction_count_holds_and_is_reached(low: float, high: float) -> None:
    hidden = FeatureBall(Norm.LINF, 1.0, 5)
    generator = torch.Generator().manual_seed(3)
    inputs = torch.rand(300, 4, dtype=torch.float64, generator=generator) * (high - low) + low
    inputs[:2] = torch.tensor([[low], [high]], dtype=torch.float64)
    units = hidden.clip(torch.randn(300, 5, dtype=torch.float64, generator=generator) * 3)
    units[:2] = 1.0
    found = max(float(reconstruction_polynomial(inputs[i : i + 1], units[i : i + 1]).linear.abs().sum()) for i in range(300))
    counted = reconstruction_sensitivity(4, hidden, low, high)
    assert counted * (1 - 1e-9) <= found <= counted
    edges = math.ceil(low * LEVELS), math.floor(high * LEVELS)
    assert reconstruction_levels_sensitivity(4, hidden, *edges) <= counted * LEVELS**2


@pytest.mark.parametrize("hidden", [5, 32])
def test_the_published_delta_r_is_exceeded_by_one_record(hidden: int) -> None:
    """A black image whose hidden units are all 1: theta' x = 1 for theta = -1/d."""
    inputs = -torch.ones(1, 10, dtype=torch.float64)
    units = inputs @ torch.full((10, hidden), -0.1, dtype=torch.float64)
    assert torch.allclose(units, torch.ones_like(units)), "inside the paper's bounds"
    moved = float(reconstruction_polynomial(inputs, units).linear.abs().sum())
    assert moved == pytest.approx(1.5 * 10 * hidden)
    assert moved > paper_delta_r(10, hidden), "by coming or going alone; replaced, it moves more"
    assert moved <= reconstruction_sensitivity(10, FeatureBall(Norm.LINF, 1.0, hidden), -1.0, 1.0) * (1 + 1e-9)


def test_the_published_delta_r_forgets_all_maps_but_one() -> None:
    """MNIST: 32 maps of 14 x 14 units that see 25 inputs each. Even its own coefficients, h/2 and x, move more."""
    assert paper_delta_r(25, 14**2) == 4950
    own_count = 25 * (32 * 14**2 / 2 + 1)
    assert own_count > 15 * paper_delta_r(25, 14**2)
    assert reconstruction_sensitivity(25, FeatureBall(Norm.LINF, 1.0, 32 * 14**2), -1.0, 1.0) > 47 * paper_delta_r(25, 14**2)


def test_the_published_delta_l2_covers_the_labels_part_alone() -> None:
    features, classes = 256, 10
    record = torch.ones(1, features, dtype=torch.float64)
    polynomial = output_polynomial(record, torch.tensor([3]), classes)
    labels_part = float((polynomial.linear - record / 2).abs().sum())
    assert labels_part <= paper_delta_l2(features) == 512
    assert float(polynomial.linear.abs().sum()) > 2 * paper_delta_l2(features), "the linear coefficients of all classes"
    moved = float(polynomial.monomials().abs().sum())
    assert moved > 100 * paper_delta_l2(features)
    assert moved <= polynomial_sensitivity(FeatureBall(Norm.LINF, 1.0, features), classes)


def test_counts_without_meaning_are_refused() -> None:
    for inputs, hidden in ((0, 3), (3, 0)):
        with pytest.raises(ConfigError, match="cannot be used"):
            paper_delta_r(inputs, hidden)
    with pytest.raises(ConfigError, match="cannot be used"):
        paper_delta_l2(0)
    with pytest.raises(ConfigError, match="no usable bounds"):
        reconstruction_sensitivity(4, FeatureBall(Norm.L1, 1.0, 2), 1.0, 0.0)
