"""The balls: lengths, projections against a solver that knows nothing of them, steepest directions, random points."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from attack_problems import ORDERS
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import NonlinearConstraint, minimize
from torch import Tensor

from twinproof.attacks.threat import BALLS, Ball, ball_of, unit_l1
from twinproof.errors import ConfigError

NORMS = sorted(BALLS)
PROMISED = settings(max_examples=60, deadline=None, derandomize=True)


def rows(seed: int, count: int = 5, width: int = 7, scale: float = 1.0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def nearest_by_solver(row: NDArray[np.float64], norm: str, size: float) -> NDArray[np.float64]:
    """The nearest point of the ball: a smooth problem in positive and negative parts."""
    width = len(row)

    def point(parts: NDArray[np.float64]) -> NDArray[np.float64]:
        return parts[:width] - parts[width:]

    def room(parts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Nowhere negative inside the ball."""
        if norm == "linf":
            return np.concatenate([size - point(parts), size + point(parts)])
        return np.atleast_1d(size**2 - np.sum(point(parts) ** 2) if norm == "l2" else size - np.sum(parts))

    def distance(parts: NDArray[np.float64]) -> float:
        return float(np.sum((point(parts) - row) ** 2))

    start, bounds = np.full(2 * width, 0.01), [(0, None)] * (2 * width)
    found = minimize(
        distance, start, method="SLSQP", bounds=bounds, constraints=[NonlinearConstraint(room, 0, np.inf)], tol=1e-14
    )
    return point(found.x)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("size", [0.3, 1.0, 2.5])
def test_projection_is_the_nearest_point(norm: str, size: float) -> None:
    delta = rows(3)
    projected = ball_of(norm).project(delta, size)
    for row, got in zip(delta.numpy(), projected.numpy(), strict=True):
        np.testing.assert_allclose(got, nearest_by_solver(row, norm, size), atol=2e-4)


@pytest.mark.parametrize("norm", NORMS)
@PROMISED
@given(seed=st.integers(0, 10**6), scale=st.floats(1e-12, 1e12), size=st.floats(0, 1e6))
def test_projection_guarantees(norm: str, seed: int, scale: float, size: float) -> None:
    """In the ball; every coordinate nearer to zero, of the same sign; what is inside stays as it is."""
    delta = rows(seed, scale=scale)
    projected = ball_of(norm).project(delta, size)
    lengths = np.linalg.norm(projected.numpy(), ord=ORDERS[norm], axis=1)
    assert (lengths <= size).all()
    assert (projected.abs() <= delta.abs()).all()
    assert (projected * delta >= 0).all()
    inside = np.linalg.norm(delta.numpy(), ord=ORDERS[norm], axis=1) <= size * (1 - 1e-10)
    assert torch.equal(projected[torch.tensor(inside)], delta[torch.tensor(inside)])


@pytest.mark.parametrize("norm", NORMS)
@PROMISED
@given(seed=st.integers(0, 10**6), scale=st.sampled_from([1e-30, 1e-8, 1.0, 1e20]))
def test_steepest_direction_is_the_best_of_length_one(norm: str, seed: int, scale: float) -> None:
    """No point of the unit ball promises more, tiny gradients included, whose squares vanish in float32."""
    ball, gradient = ball_of(norm), (rows(seed) * scale).float()
    step = ball.steepest(gradient).double()
    assert (ball.length(step) <= 1 + 1e-6).all()
    promised = (step * gradient.double()).sum(dim=1)
    dual = {"linf": 1, "l2": 2, "l1": np.inf}[norm]
    np.testing.assert_allclose(promised.numpy(), np.linalg.norm(gradient.double().numpy(), ord=dual, axis=1), rtol=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_no_gradient_no_direction(norm: str) -> None:
    assert torch.equal(ball_of(norm).steepest(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_l1_steps_go_where_there_is_room() -> None:
    gradient = torch.tensor([[3.0, -2.0, 1.0, 0.5]])
    blocked = torch.tensor([[True, False, False, False]])
    ball = ball_of("l1")
    assert ball.steepest(gradient).tolist() == [[1.0, 0.0, 0.0, 0.0]]
    assert ball.steepest(gradient, blocked).tolist() == [[0.0, -1.0, 0.0, 0.0]]
    assert ball.steepest(gradient, blocked, spread=0.5).tolist() == [[0.0, -0.5, 0.5, 0.0]]


def test_unit_l1_has_length_one_or_zero() -> None:
    got = unit_l1(torch.tensor([[1e-30, -3e-30], [0.0, 0.0], [2.0, 2.0]]))
    torch.testing.assert_close(got, torch.tensor([[0.25, -0.75], [0.0, 0.0], [0.5, 0.5]]))


def filled(points: Tensor, ball: Ball, size: float) -> float:
    """Share of the points inside the ball of half the volume; one half for uniform points."""
    half = size * 0.5 ** (1 / points.shape[1])
    return float((ball.length(points) <= half).double().mean())


@pytest.mark.parametrize("norm", NORMS)
def test_random_points_fill_the_ball(norm: str) -> None:
    """40,000 points: the share has a standard deviation of 0.0025, five of which are one in a million."""
    ball, like = ball_of(norm), torch.zeros(40_000, 3)
    points = ball.random(like, 2.0, torch.Generator().manual_seed(0))
    assert (ball.length(points) <= 2.0 * (1 + 1e-6)).all()
    assert abs(filled(points, ball, 2.0) - 0.5) < 0.0125
    assert (points.mean(dim=0).abs() < 0.03).all()
    on_the_surface = ball.steepest(torch.randn(40_000, 3, generator=torch.Generator().manual_seed(0))) * 2.0
    assert abs(filled(on_the_surface, ball, 2.0) - 0.5) > 0.0125


def test_unknown_norm() -> None:
    with pytest.raises(ConfigError, match="unknown norm"):
        ball_of("l3")
