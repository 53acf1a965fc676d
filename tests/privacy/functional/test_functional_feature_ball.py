"""Features as whole numbers inside a declared ball: exactly inside, whatever a record holds, and each record for itself."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from twinproof.errors import ConfigError
from twinproof.privacy.functional import LEVELS, FeatureBall
from twinproof.privacy.linear_maps import Norm

BALLS = [(norm, radius, features) for norm in Norm for radius, features in ((1.0, 7), (0.3, 1), (12.5, 300))]


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


@pytest.mark.parametrize(("norm", "radius", "features"), BALLS)
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


@pytest.mark.parametrize(("norm", "radius", "features"), BALLS[::2])
def test_what_is_inside_stays_within_a_level(norm: Norm, radius: float, features: int) -> None:
    ball = FeatureBall(norm, radius, features)
    inside = torch.linspace(-1, 1, features * 20, dtype=torch.float64).view(20, features) * radius / features * 0.999
    clipped = ball.clip(inside)
    assert float((clipped - inside).abs().max()) <= ball.unit * (1 + 1e-9)
    assert torch.equal(ball.clip(inside.float()), ball.clip(inside.float().double()))
    assert torch.equal(ball.levels(inside)[3:4], ball.levels(inside[3:4])), "each record for itself"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((Norm.L1, 0.0, 3), "radius"),
        ((Norm.L1, math.inf, 3), "radius"),
        ((Norm.L1, 1.0, 0), "number of features"),
        (("l3", 1.0, 2), "unknown norm"),
    ],
)
def test_bounds_without_meaning_are_refused(settings: tuple[Norm, float, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FeatureBall(*settings)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 3, 1)])
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="another shape"):
        FeatureBall(Norm.L2, 1.0, 3).levels(torch.zeros(shape))
