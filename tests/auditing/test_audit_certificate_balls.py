"""Storable points inside a certified ball: integers, in range, never too far, and not needlessly near."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from twinproof.auditing.certificate_search import Balls
from twinproof.errors import ConfigError

NORMS = ("l2", "l1", "linf")


def balls_of(norm: str, levels: int, seed: int) -> Balls:
    generator = torch.Generator().manual_seed(seed)
    stored = torch.randint(0, levels + 1, (40, 1, 3, 4), generator=generator).double()
    scale = {"l2": 1.0, "l1": 3.0, "linf": 0.3}[norm]
    radii = torch.rand(40, generator=generator, dtype=torch.float64) * scale + 1e-6
    return Balls(norm, stored, radii, levels)


def exactly_inside(balls: Balls, points: Tensor, lengths: Tensor) -> list[bool]:
    """The same question in exact arithmetic on Python integers, without torch."""
    verdicts = []
    for point, centre, length in zip(points.tolist(), balls.stored.tolist(), lengths.tolist(), strict=True):
        flat = [(int(a), int(b)) for one, two in zip(point[0], centre[0], strict=True) for a, b in zip(one, two, strict=True)]
        assert point == [[[float(int(level)) for level in line] for line in point[0]]], "levels are whole numbers"
        assert all(0 <= a <= balls.levels for a, _ in flat)
        moved = [abs(a - b) for a, b in flat]
        # Room for the rounding of one square root and one division.
        allowed = Fraction(length) * balls.levels * (1 + Fraction(1, 2**50))
        size = {"l2": Fraction(sum(m * m for m in moved)), "l1": Fraction(sum(moved)), "linf": Fraction(max(moved))}[balls.norm]
        verdicts.append(size <= (allowed**2 if balls.norm == "l2" else allowed))
    return verdicts


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("levels", [1, 16, 255, 65535])
def test_storable_points_lie_inside(norm: str, levels: int) -> None:
    for seed in range(3):
        balls = balls_of(norm, levels, seed)
        directions = torch.randn(balls.stored.shape, generator=torch.Generator().manual_seed(seed + 100))
        points = balls.storable(directions, balls.radii * 0.99)
        assert all(exactly_inside(balls, points, balls.radii * 0.99))
        assert bool((balls.measure(points) <= balls.radii * 0.99).all())


def test_planted_rounding_to_nearest_is_caught() -> None:
    balls = balls_of("l2", 16, 0)
    directions = torch.randn(balls.stored.shape, generator=torch.Generator().manual_seed(100))
    wanted = balls.stored / 16 + balls.unit(directions) * (balls.radii * 0.99).reshape(-1, 1, 1, 1)
    nearest = (wanted * 16).round().clamp(0, 16)
    assert not all(exactly_inside(balls, nearest, balls.radii * 0.99))


def test_points_use_the_room_they_have() -> None:
    """Cutting coordinates off towards the input would stay at the input altogether on a coarse grid."""
    stored = torch.full((1, 64), 8.0, dtype=torch.float64)
    balls = Balls("l2", stored, torch.tensor([0.4], dtype=torch.float64), 16)
    directions = torch.randn((1, 64), generator=torch.Generator().manual_seed(1))
    found = balls.storable(directions, balls.radii)
    cut = stored + (balls.unit(directions) * 0.4 * 16).trunc()
    assert float(balls.measure(cut)) < 0.25 < 0.35 < float(balls.measure(found)) <= 0.4


@pytest.mark.parametrize("norm", NORMS)
def test_search_steps_stay_inside(norm: str) -> None:
    balls = balls_of(norm, 255, 4)
    generator = torch.Generator().manual_seed(2)
    for points in (balls.random(0.99, generator), balls.inside(torch.randn(balls.stored.shape, generator=generator) * 9, 0.99)):
        away = (points.double() - balls.stored / 255).flatten(1)
        lengths = torch.linalg.vector_norm(away, ord={"l2": 2, "l1": 1, "linf": math.inf}[norm], dim=1)
        assert bool((lengths <= balls.radii + 1e-5).all())
        assert 0 <= float(points.min()) <= float(points.max()) <= 1


def test_strange_directions_stay_at_the_input() -> None:
    balls = balls_of("l2", 255, 5)
    strange = torch.zeros(balls.stored.shape)
    strange[3] = torch.nan
    strange[4, 0, 0, 0] = torch.inf
    assert torch.equal(balls.storable(strange, balls.radii), balls.stored)


def test_an_unknown_norm_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown norm"):
        Balls("l7", torch.zeros(1, 2, dtype=torch.float64), torch.ones(1), 255).measure(torch.zeros(1, 2))
