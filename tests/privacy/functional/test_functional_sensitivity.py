"""Objectives, feature balls and counted sensitivities: against autograd, exact integers, random and optimised records."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from twinproof.errors import ConfigError, DataError
from twinproof.privacy.functional import (
    LEVELS,
    FeatureBall,
    ReconstructionPlan,
    output_polynomial,
    polynomial_sensitivity,
    products_sensitivity,
    reconstruction_polynomial,
    reconstruction_sensitivity,
)
from twinproof.privacy.linear_maps import Norm

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
    "class sums": (sum_movement, lambda ball: ball.largest_sum),
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
    assert ReconstructionPlan(4, hidden, 1.0, low, high).coefficients.sensitivity <= counted * LEVELS**2
    with pytest.raises(ConfigError, match="no usable bounds"):
        reconstruction_sensitivity(4, hidden, high, low)


RECORDS, FEATURES, KINDS, HIDDEN = 6, 4, 3, 5


def some(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape))) * 2 - 1


LABELS = torch.tensor([0, 2, 1, 1, 0, 2])
INPUTS = some(RECORDS, FEATURES)


def exact_output(weights: Tensor) -> Tensor:
    targets = F.one_hot(LABELS, KINDS).double()
    return F.binary_cross_entropy_with_logits(INPUTS @ weights.T, targets, reduction="sum")


def test_the_output_objective_is_the_second_order_expansion() -> None:
    """Value, gradient and Hessian at 0 are those of the exact loss; the third derivative is gone."""
    polynomial = output_polynomial(INPUTS, LABELS, KINDS)
    start = torch.zeros(KINDS, FEATURES, dtype=torch.float64)
    assert torch.allclose(polynomial.value(start), exact_output(start))
    gradients = [torch.func.jacrev(function)(start) for function in (polynomial.value, exact_output)]
    hessians = [torch.func.hessian(function)(start) for function in (polynomial.value, exact_output)]
    assert torch.allclose(*gradients)
    assert torch.allclose(*hessians)
    assert torch.allclose(hessians[0], torch.func.hessian(polynomial.value)(start + 3))
    wrong = output_polynomial(INPUTS, 2 - LABELS, KINDS)
    assert not torch.allclose(torch.func.jacrev(wrong.value)(start), gradients[1]), "other labels are seen"


def test_the_reconstruction_objective_is_the_first_order_expansion() -> None:
    inputs, hidden = (some(RECORDS, FEATURES) + 1) / 2, some(RECORDS, HIDDEN)
    polynomial = reconstruction_polynomial(inputs, hidden)

    def exact(weights: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(hidden @ weights.T, inputs, reduction="sum")

    start = torch.zeros(FEATURES, HIDDEN, dtype=torch.float64)
    assert torch.allclose(polynomial.value(start), exact(start))
    assert torch.allclose(torch.func.jacrev(polynomial.value)(start), torch.func.jacrev(exact)(start))
    assert torch.func.hessian(polynomial.value)(start).abs().max() == 0


def test_parts_that_do_not_fit_are_refused() -> None:
    for labels in (torch.tensor([0, 3]), torch.tensor([-1, 0])):
        with pytest.raises(DataError, match="belongs to no class"):
            output_polynomial(some(2, FEATURES), labels, KINDS)
    for records, labels in ((2, LABELS), (RECORDS, LABELS.double())):
        with pytest.raises(DataError, match="do not fit the records"):
            output_polynomial(some(records, FEATURES), labels, KINDS)
    with pytest.raises(ConfigError, match="do not fit together"):
        reconstruction_polynomial(some(2, FEATURES), some(3, HIDDEN))


SETTINGS = [(norm, radius, features) for norm in Norm for radius, features in ((1.0, 7), (0.3, 1), (12.5, 300))]


def records(features: int) -> Tensor:
    """Small and large, dense and with one entry, at the corners, and what nobody should send."""
    generator = torch.Generator().manual_seed(features)
    plain = torch.randn(400, features, dtype=torch.float64, generator=generator)
    scales = 10.0 ** torch.linspace(-4, 6, 400, dtype=torch.float64)[:, None]
    corners = torch.where(plain[:50] > 0, 1e3, -1e3)
    single = torch.eye(features, dtype=torch.float64)[:50] * -1e9
    broken = torch.zeros(5, features, dtype=torch.float64)
    broken[:, 0] = torch.tensor([math.nan, math.inf, -math.inf, 1e308, 5e-324], dtype=torch.float64)
    return torch.cat([plain * scales, corners, single, broken])


def outside(ball: FeatureBall, levels: Tensor) -> int:
    """How many records are not whole numbers inside the ball, in exact arithmetic."""
    found = 0
    for row in levels.tolist():
        whole = [int(value) for value in row]
        length = {
            Norm.L1: sum(map(abs, whole)),
            Norm.L2: sum(value**2 for value in whole),
            Norm.LINF: max(map(abs, whole)),
        }[ball.norm]
        found += whole != row or length > (LEVELS**2 if ball.norm is Norm.L2 else LEVELS)
    return found


@pytest.mark.parametrize(("norm", "radius", "features"), SETTINGS)
def test_every_record_is_inside_exactly(norm: Norm, radius: float, features: int) -> None:
    ball = FeatureBall(norm, radius, features)
    levels = ball.levels(records(features))
    assert outside(ball, levels) == 0
    sums = levels.abs().sum(1)
    assert int(sums.max()) <= ball.largest_sum
    assert int(levels.square().sum(1).max()) <= ball.largest_square
    assert float(sums.max()) >= ball.largest_sum * (0.999 if norm is not Norm.L2 else 0.95), "and close to what is allowed"
    assert (levels[-5:-2] == 0).all(), "a record that is not finite counts nothing"


@pytest.mark.parametrize("norm", [Norm.L1, Norm.L2])
def test_planted_rounding_to_nearest_and_a_box_for_the_ball_are_seen(norm: Norm) -> None:
    ball = FeatureBall(norm, 1.0, 300)
    values = records(300)[:-5] * LEVELS
    lengths = torch.linalg.vector_norm(values, ord=1 if norm is Norm.L1 else 2, dim=1, keepdim=True)
    scaled = values * (LEVELS / lengths).clamp(max=1.0)
    assert outside(ball, scaled.round()) > 0, "to the nearest level is too far"
    assert outside(ball, values.clamp(-LEVELS, LEVELS).trunc()) > 0, "a box is no ball"


def test_bounds_and_shapes_without_meaning_are_refused() -> None:
    wrong: list[tuple[object, float, int, str]] = [
        (Norm.L1, 0.0, 3, "radius"),
        (Norm.L1, math.inf, 3, "radius"),
        (Norm.L1, 1.0, 0, "features"),
        ("l3", 1.0, 2, "norm cannot"),
    ]
    for norm, radius, features, message in wrong:
        with pytest.raises(ConfigError, match=message):
            FeatureBall(norm, radius, features)  # type: ignore[arg-type]
    for shape in ((3,), (2, 4), (2, 3, 1)):
        with pytest.raises(ConfigError, match="another shape"):
            FeatureBall(Norm.L2, 1.0, 3).levels(torch.zeros(shape))
