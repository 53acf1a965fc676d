"""Scales are what their definitions say, and ``least_scales`` is what ``forward`` multiplies by, to the bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from twinproof.errors import ConfigError
from twinproof.layers.noise import FixedSpread, LearnedSpread, RandomSpread, Spread, UniformSpread

SHAPE = (3, 5, 7)
COORDINATES = math.prod(SHAPE)


def _learned(floor: float = 0.1, dtype: torch.dtype = torch.float32) -> LearnedSpread:
    spread = LearnedSpread(SHAPE, floor)
    with torch.no_grad():
        spread.log_shares.copy_(2 * torch.randn(COORDINATES, generator=torch.Generator().manual_seed(1)))
    return spread.to(dtype)


def _fixed() -> FixedSpread:
    return FixedSpread(SHAPE, np.random.default_rng(1).uniform(0.1, 3, COORDINATES))


def _multiplied_by(spread: Spread, rows: int = 2) -> Tensor:
    """The scales of a forward pass: noise of ones shows them."""
    dtype = next(spread.parameters(), torch.zeros(())).dtype
    with torch.no_grad():
        made: Tensor = spread(torch.ones(rows, *SHAPE, dtype=dtype))
    return made.flatten(1)


FIXED: dict[str, Spread] = {
    "uniform": UniformSpread(SHAPE),
    "fixed": _fixed(),
    "learned": _learned(),
    "learned, float64": _learned(dtype=torch.float64),
}


def _least_is_exact(spread: Spread, least: NDArray[np.float64]) -> bool:
    return all(np.array_equal(row.double().numpy(), least) for row in _multiplied_by(spread))


@pytest.mark.parametrize("name", FIXED)
def test_least_scales_are_the_numbers_of_forward_to_the_bit(name: str) -> None:
    spread = FIXED[name]
    least = spread.least_scales()
    assert (least.dtype, least.shape, spread.random) == (np.dtype(np.float64), (COORDINATES,), False)
    assert _least_is_exact(spread, least)


def test_planted_scales_of_another_precision_are_caught() -> None:
    spread = _learned()
    shares = torch.softmax(spread.log_shares.detach().double(), 0)
    in_float64 = (0.9 * COORDINATES * shares + 0.1).sqrt().numpy()
    np.testing.assert_allclose(in_float64, spread.least_scales(), rtol=1e-7)
    assert not _least_is_exact(spread, in_float64)


@pytest.mark.parametrize("floor", [0.01, 0.5, 0.99])
def test_learned_shares_are_a_distribution_above_the_floor(floor: float) -> None:
    shares = _learned(floor).least_scales() ** 2 / COORDINATES
    assert shares.sum() == pytest.approx(1, rel=1e-6)
    assert shares.min() >= floor / COORDINATES * (1 - 1e-6)
    assert LearnedSpread(SHAPE, floor).least_scales() == pytest.approx(1, rel=1e-7), "equal noise at the start"


def _shows_a_scale_below(scales: Tensor, least: float) -> bool:
    return bool((scales.double() < least).any())


@pytest.mark.parametrize("width", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("shape", [(1,), (2,), (40,)])
def test_no_random_scale_is_below_the_least(shape: tuple[int, ...], width: float) -> None:
    torch.manual_seed(2)
    spread = RandomSpread(shape, width)
    scales = spread(torch.ones(100_000, *shape))
    (least,) = set(spread.least_scales().tolist())
    assert spread.random
    assert not _shows_a_scale_below(scales, least)
    torch.testing.assert_close((scales**2).mean(1), torch.ones(len(scales)), rtol=1e-4, atol=0)
    if shape == (2,) and width == 0.3:  # the worst case of two coordinates is nearly drawn: the bound is not loose
        assert float(scales.min()) < least * 1.01
        assert _shows_a_scale_below(scales, least * 1.01), "a planted bound that is too high by one per cent is caught"


def test_the_worst_draw_of_all_is_not_below_the_least_where_plain_rounding_is(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_is_below = 0
    for coordinates in (2, 3, 7, 1000):
        worst = torch.full((1, coordinates), 1 - 2.0**-24)
        worst[0, 0] = 0
        monkeypatch.setattr(torch, "rand", lambda *_, worst=worst, **__: worst)
        for width in (0.1, 0.3, 0.5, 0.7, 0.9):
            spread = RandomSpread((coordinates,), width)
            least = float(spread.least_scales()[0])
            mean = ((1 - width) + (coordinates - 1) * (1 + width)) / coordinates
            assert least == pytest.approx(math.sqrt((1 - width) / mean), rel=1e-7)
            assert not _shows_a_scale_below(spread(torch.ones(1, coordinates)), least)
            weights = worst * (2 * width) + (1 - width)
            plain_is_below += _shows_a_scale_below((weights / weights.mean()).sqrt(), least)
    assert plain_is_below, "without the lift rounding would break the bound: the test can see it"


def test_random_scales_are_drawn_for_every_row() -> None:
    torch.manual_seed(3)
    spread = RandomSpread((4,), 0.5)
    rows = torch.cat([spread(torch.ones(100, 4)) for _ in range(2)])
    assert len(torch.unique(rows[:, 0])) == 200


@pytest.mark.parametrize(
    ("spread", "saved"),
    [
        (UniformSpread(SHAPE), set()),
        (_fixed(), {"scales"}),
        (_learned(), {"log_shares"}),
        (RandomSpread(SHAPE, 0.1), set()),
    ],
)
def test_state_is_what_a_run_must_save(spread: Spread, saved: set[str]) -> None:
    assert set(spread.state_dict()) == saved
    assert spread.coordinates == COORDINATES


@pytest.mark.parametrize("scales", [[1.0], [1.0, 0.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf], [1.0, 1e-60]])
def test_refuses_scales_without_noise(scales: list[float]) -> None:
    with pytest.raises(ConfigError, match=r"scales do not fit|no noise, or noise without bound"):
        FixedSpread((2,), scales)


@pytest.mark.parametrize("floor", [0.0, 1.0, -0.1, math.nan])
def test_refuses_a_floor_without_meaning(floor: float) -> None:
    with pytest.raises(ConfigError, match="floor"):
        LearnedSpread((2,), floor)


@pytest.mark.parametrize("width", [-0.1, 1.0, math.nan])
def test_refuses_a_width_without_meaning(width: float) -> None:
    with pytest.raises(ConfigError, match="width"):
        RandomSpread((2,), width)


def test_refuses_an_empty_shape() -> None:
    with pytest.raises(ConfigError, match="needs a shape"):
        UniformSpread((2, 0))
