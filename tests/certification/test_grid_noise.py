"""Grid noise: exact sums, the right law, and streams that share nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import norm

from twinproof.certification.confidence import clopper_pearson_lower
from twinproof.certification.grid_noise import GridNoise, input_noise
from twinproof.errors import ConfigError
from twinproof.keys import Key

CPU = torch.device("cpu")
CASES = [(sigma, levels) for levels in (16, 255, 65535) for sigma in (0.01, 0.25, 0.5, 1.0, 4.0)]
MILLION = 1_000_000


def _draws(noise: GridNoise, count: int = MILLION) -> NDArray[np.float32]:
    return np.asarray(noise.draws(Key.from_seed(1), "test", 0, 0, count // 1000, 1000, CPU)).reshape(-1)


@pytest.mark.parametrize(("sigma", "levels"), CASES)
def test_every_draw_is_a_multiple_of_the_grid(sigma: float, levels: int) -> None:
    noise = input_noise(sigma, levels)
    assert math.frexp(noise.grid)[0] == 0.5
    assert noise.grid <= 1
    multiples = _draws(noise, 100_000).astype(np.float64) / noise.grid
    assert (multiples == np.rint(multiples)).all()
    # Fine enough that no network notices, and not finer than needed, except where the stored levels themselves are as fine.
    assert noise.steps >= 64
    assert noise.grid == 1 or noise.steps < 128


def _inexact_sums(noise: NDArray[np.float32], levels: int) -> int:
    stored = np.arange(0, levels + 1, max(1, levels // 255), dtype=np.float32)[:, None]
    single = stored + noise[None, :]
    assert single.dtype == np.float32
    return int((single.astype(np.float64) != stored.astype(np.float64) + noise[None, :].astype(np.float64)).sum())


@pytest.mark.parametrize(("sigma", "levels"), CASES)
def test_input_plus_noise_is_exact_in_float32(sigma: float, levels: int) -> None:
    noise = input_noise(sigma, levels)
    # The largest draw that the cut allows stands for the tails that no sample reaches.
    edge = np.float32(noise.table.reach * noise.grid)
    assert float(edge) == noise.table.reach * noise.grid
    drawn = np.append(_draws(noise, 5_000), [edge, -edge, edge - noise.grid]).astype(np.float32)
    assert _inexact_sums(drawn, levels) == 0


def test_planted_noise_off_the_grid_is_caught() -> None:
    off = (np.random.default_rng(0).standard_normal(5_000) * 0.25 * 255).astype(np.float32)
    assert _inexact_sums(off, 255) > 100_000


def _assert_law(drawn: NDArray[np.float32], sigma: float, levels: int) -> None:
    """Mean, standard deviation and distribution against the rounded normal; each false alarm is below 1e-6."""
    noise = input_noise(sigma, levels)
    values, count = drawn.astype(np.float64), drawn.size
    deviation = sigma * levels
    assert abs(values.mean()) <= 5 * deviation / math.sqrt(count), "mean"
    rounded = math.sqrt(deviation**2 + noise.grid**2 / 12)
    assert abs(values.std() / rounded - 1) <= 0.005, "standard deviation"
    points, counts = np.unique(values, return_counts=True)
    empirical = np.cumsum(counts) / count
    distance = np.abs(empirical - norm.cdf((points + noise.grid / 2) / deviation)).max()
    assert distance <= math.sqrt(math.log(2e6) / (2 * count)), "distribution"  # Dvoretzky, Kiefer, Wolfowitz; Massart


@pytest.mark.parametrize(("sigma", "levels"), CASES)
def test_the_law_is_the_rounded_normal(sigma: float, levels: int) -> None:
    _assert_law(_draws(input_noise(sigma, levels)), sigma, levels)


def _one_percent_up(drawn: NDArray[np.float32]) -> NDArray[np.float32]:
    wider: NDArray[np.float32] = (np.rint(drawn * 1.01 * 2) / 2).astype(np.float32)
    return wider


def _laplace(drawn: NDArray[np.float32]) -> NDArray[np.float32]:
    laplace = np.random.default_rng(2).laplace(scale=63.75 / math.sqrt(2), size=drawn.size)
    return (np.rint(laplace * 2) / 2).astype(np.float32)


def _rounded_down(drawn: NDArray[np.float32]) -> NDArray[np.float32]:
    lower: NDArray[np.float32] = np.floor(drawn - 0.4).astype(np.float32)
    return lower


@pytest.mark.parametrize(
    ("planted", "caught"), [(_one_percent_up, "standard deviation"), (_laplace, "distribution"), (_rounded_down, "mean")]
)
def test_planted_laws_are_caught(planted: Callable[[NDArray[np.float32]], NDArray[np.float32]], caught: str) -> None:
    with pytest.raises(AssertionError, match=caught):
        _assert_law(planted(_draws(input_noise(0.25, 255))), 0.25, 255)


def _streams() -> list[tuple[int, str, int, int]]:
    """(seed, purpose, index, first draw), each differing from the first in one part."""
    return [(1, "select", 0, 0), (2, "select", 0, 0), (1, "estimate", 0, 0), (1, "select", 1, 0), (1, "select", 0, 200)]


def _largest_correlation(drawn: list[NDArray[np.float64]]) -> float:
    matrix = np.corrcoef(np.stack(drawn))
    return float(np.abs(matrix - np.eye(len(drawn))).max())


def test_streams_are_independent() -> None:
    noise, count = input_noise(0.5, 255), 200_000
    drawn = [
        np.asarray(noise.draws(Key.from_seed(seed), purpose, index, first, 200, 1000, CPU), dtype=np.float64).reshape(-1)
        for seed, purpose, index, first in _streams()
    ]
    limit = 5.5 / math.sqrt(count)
    assert _largest_correlation(drawn) < limit
    assert _largest_correlation([np.abs(values) for values in drawn]) < limit
    leaky = drawn[1] + 0.03 * drawn[0]
    assert _largest_correlation([drawn[0], leaky]) > limit


@pytest.mark.parametrize("first", [0, 1, 990, 12_345])
def test_any_draw_can_be_made_alone(first: int) -> None:
    noise, key = input_noise(0.5, 255), Key.from_seed(3)
    long = noise.draws(key, "estimate", 7, first, 50, 3, CPU)
    for at in (0, 1, 49):
        assert torch.equal(noise.draws(key, "estimate", 7, first + at, 1, 3, CPU)[0], long[at])


def test_anyone_can_draw_the_noise_again_from_the_key() -> None:
    """The stream, written out with numpy and scipy: stored keys must stay good for re-drawing the votes of old certificates."""
    noise, key = input_noise(0.25, 255), Key.from_seed(6)
    seed = int.from_bytes(key.stream("estimate", 0, length=32 * 1024)[32 * 3 : 32 * 3 + 16], "little")
    words = np.random.Philox(key=seed, counter=2 * 1000).random_raw(1000 * 8).view(np.uint32).reshape(1000, 16)
    exact = norm.ppf((words[:, :13] + 0.5) / 2**32) * 63.75
    drawn = np.asarray(noise.draws(key, "estimate", 3, 1000, 1000, 13, CPU), dtype=np.float64)
    assert np.abs(drawn - exact).max() <= noise.grid / 2 * (1 + 1e-4), "not the nearest point of the grid"


def test_tau_is_the_documented_formula() -> None:
    noise = input_noise(0.5, 255)
    assert (noise.grid, noise.steps) == (1.0, 127.5)
    assert noise.tau(784) == pytest.approx(784 * (17 * 127.5 * 2.0**-64 + 2.0**-49) + 2.0**-36, rel=1e-12)
    for sigma, levels in CASES:
        other = input_noise(sigma, levels)
        # Less than a vote of ten thousand is worth, by orders, even for the largest images.
        assert 2.0**-36 < other.tau(1) < other.tau(150_528) < 1e-7


@pytest.mark.parametrize(("votes", "draws"), [(10_000, 10_000), (9_990, 10_000), (7_000, 10_000), (5_200, 10_000), (90, 100)])
def test_tau_exceeds_the_error_of_the_bound(votes: int, draws: int) -> None:
    """At the bound, so many votes or more must have probability alpha; the slope there turns what is missing into an error."""
    bound = Decimal(float(clopper_pearson_lower(votes, draws, 0.001)))
    with localcontext() as context:
        context.prec = 60
        term = first = Decimal(math.comb(draws, votes)) * bound**votes * (1 - bound) ** (draws - votes)
        tail = term
        for k in range(votes, draws):
            term *= Decimal(draws - k) / (k + 1) * bound / (1 - bound)
            tail += term
        slope = first * votes / bound
        assert abs((tail - Decimal("0.001")) / slope) < Decimal(2) ** -40


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_unusable_sigma_is_refused(sigma: float) -> None:
    with pytest.raises(ConfigError, match="smoothing noise cannot be used"):
        input_noise(sigma, 255)


@pytest.mark.parametrize(
    ("sigma", "levels"), [(5e-324, 255), (1e-300, 255), (1e-6, 255), (1e5, 255), (1e300, 255), (100.0, 65535)]
)
def test_sigma_that_float32_cannot_carry_is_refused(sigma: float, levels: int) -> None:
    with pytest.raises(ConfigError, match="would not be exact in float32"):
        input_noise(sigma, levels)


@pytest.mark.parametrize("levels", [0, -1])
def test_unusable_levels_are_refused(levels: int) -> None:
    with pytest.raises(ConfigError, match="stored levels"):
        input_noise(0.25, levels)
