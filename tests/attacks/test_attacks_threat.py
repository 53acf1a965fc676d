"""The balls, and what a threat admits: never outside the ball or the range, to the last bit; planted mistakes are seen."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from attack_problems import ORDERS, float64_length
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import NonlinearConstraint, minimize
from torch import Tensor

from twinproof.attacks.threat import BALLS, Ball, Threat, ball_of, per_row, unit_l1, violations
from twinproof.errors import ConfigError

NORMS = sorted(BALLS)
PROMISED = settings(max_examples=120, deadline=None, derandomize=True)
SIZES = st.one_of(st.sampled_from([0.0, 1e-10, 1 / 255, 0.1, 0.3, 8 / 255]), st.floats(0, 3), st.floats(0, 1e-6))
RANGES = st.sampled_from([(0.0, 1.0), (-1.0, 1.0), (0.1, 0.3), (-0.5, 0.5), (1e-30, 7.0)])


def candidates(seed: int, low: float, high: float, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Originals, some of them at the ends of the range, and candidates far and near, some out of all bounds."""
    generator = torch.Generator().manual_seed(seed)
    original = (torch.rand(8, 30, generator=generator, dtype=dtype) * (high - low) + low).clamp(low, high)
    original[0], original[1], original[2, ::2] = low, high, low
    away = torch.randn(8, 30, generator=generator, dtype=dtype) * torch.logspace(-8, 2, 8, dtype=dtype)[:, None]
    candidate = original + away
    candidate[3, 0], candidate[3, 1], candidate[3, 2] = math.nan, math.inf, -math.inf
    return candidate, original


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@PROMISED
@given(seed=st.integers(0, 10**6), size=SIZES, ends=RANGES)
def test_admitted_points_are_in_the_ball_and_the_range(
    norm: str, dtype: torch.dtype, seed: int, size: float, ends: tuple[float, float]
) -> None:
    candidate, original = candidates(seed, *ends, dtype=dtype)
    threat = Threat(norm, size, *ends)
    admitted = threat.admit(candidate, original)
    assert (float64_length(admitted, original, norm) <= size).all()
    assert (admitted >= ends[0]).all()
    assert (admitted <= ends[1]).all()
    assert not violations(threat, admitted, original).any()
    if size == 0:
        assert torch.equal(admitted, original)


@pytest.mark.parametrize("norm", NORMS)
def test_points_inside_are_left_alone(norm: str) -> None:
    original = torch.full((1, 4), 0.5)
    candidate = torch.tensor([[0.5, 0.55, 0.45, 0.5]])
    assert torch.equal(Threat(norm, 0.3).admit(candidate, original), candidate)


def _no_projection(threat: Threat, candidate: Tensor, original: Tensor) -> Tensor:
    return candidate.nan_to_num(0.5).clamp(threat.low, threat.high)


def _no_range(threat: Threat, candidate: Tensor, original: Tensor) -> Tensor:
    delta = threat.ball.project((candidate - original).nan_to_num(0.0), threat.size / 2)
    return (original + delta).float()


def _single_precision(threat: Threat, candidate: Tensor, original: Tensor) -> Tensor:
    """What everybody writes: float32 all the way, and nothing looks at the last bit."""
    delta = candidate.nan_to_num(0.5).clamp(threat.low, threat.high) - original
    if threat.norm == "linf":
        return original + delta.clamp(-threat.size, threat.size)
    length = torch.linalg.vector_norm(delta, ord=threat.ball.order, dim=1)
    return original + delta * per_row((threat.size / length.clamp(min=1e-12)).clamp(max=1.0), delta)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("planted", [_no_projection, _no_range, _single_precision])
def test_planted_mistakes_are_seen(norm: str, planted: object) -> None:
    seen = 0
    for seed in range(20):
        candidate, original = candidates(seed, 0.0, 1.0)
        threat = Threat(norm, 0.3)
        assert callable(planted)
        seen += int(violations(threat, planted(threat, candidate, original), original).sum())
    assert seen > 0


@pytest.mark.parametrize("norm", NORMS)
def test_checker_sees_one_ulp(norm: str) -> None:
    threat, original = Threat(norm, 0.25), torch.full((1, 3), 0.5)
    at_the_edge = original.clone()
    at_the_edge[0, 0] = 0.75
    beyond = at_the_edge.clone()
    beyond[0, 0] = float(np.nextafter(np.float32(0.75), np.float32(1)))
    assert violations(threat, torch.cat([at_the_edge, beyond]), original.repeat(2, 1)).tolist() == [False, True]


def test_checker_sees_nan_and_range() -> None:
    original = torch.full((3, 2), 0.99)
    candidate = torch.tensor([[0.99, math.nan], [0.99, 1.0001], [0.99, 1.0]])
    assert violations(Threat("linf", 0.5), candidate, original).tolist() == [True, True, False]


@pytest.mark.parametrize("size", [-0.1, math.nan, math.inf])
def test_bad_sizes(size: float) -> None:
    with pytest.raises(ConfigError, match="of this size makes no sense"):
        Threat("linf", size)


@pytest.mark.parametrize(("low", "high"), [(1.0, 0.0), (0.0, 0.0), (math.nan, 1.0), (0.0, math.inf)])
def test_bad_ranges(low: float, high: float) -> None:
    with pytest.raises(ConfigError, match="range of the inputs is empty"):
        Threat("l2", 0.1, low, high)


def test_unknown_norm() -> None:
    with pytest.raises(ConfigError, match="unknown norm"):
        Threat("l7", 0.1)


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
