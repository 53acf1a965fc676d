"""What is admitted never leaves the ball or the range, to the last bit; planted mistakes are seen by the checker."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from attack_problems import float64_length
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from twinproof.attacks.threat import Threat, per_row, violations
from twinproof.errors import ConfigError

NORMS = ("linf", "l2", "l1")
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
