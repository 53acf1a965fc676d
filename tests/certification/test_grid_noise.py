"""Noise on its grid: exact sums, the right law, a grid that costs little, and what a random spread draws besides."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import laplace, norm
from torch import Tensor, nn

from twinproof.certification.confidence import clopper_pearson_lower
from twinproof.certification.grid_noise import GridNoise, RemainingNoise, draws_noise, input_noise, layer_noise, repeatable
from twinproof.certification.method import Sampling
from twinproof.certification.smoothed import smooth
from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.layers.noise import Law, NoiseLayer, Place, RandomSpread, Spread, UniformSpread, standard_noise
from twinproof.layers.noise_placement import add_noise

CPU = torch.device("cpu")
CASES = [(sigma, levels) for levels in (16, 255, 65535) for sigma in (0.01, 0.25, 0.5, 1.0, 4.0)]
MILLION = 1_000_000


def _draws(noise: GridNoise, count: int = MILLION) -> NDArray[np.float32]:
    return np.asarray(noise.draws(Key.from_seed(1), "test", 0, 0, count // 1000, 1000, CPU)).reshape(-1)


@pytest.mark.parametrize(("sigma", "levels"), CASES)
def test_the_grid_is_a_power_of_two_and_as_coarse_as_it_may_be(sigma: float, levels: int) -> None:
    noise = input_noise(sigma, levels)
    assert math.frexp(noise.grid)[0] == 0.5
    assert noise.grid <= 1
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


def _assert_law(drawn: NDArray[np.float32], noise: GridNoise) -> None:
    """Mean, mean square and distribution against the rounded law; each false alarm is below 1e-6."""
    values, count, deviation = drawn.astype(np.float64), drawn.size, noise.sigma * noise.levels
    law = norm(scale=deviation) if noise.law is Law.GAUSSIAN else laplace(scale=deviation)
    assert abs(values.mean()) <= 5 * law.std() / math.sqrt(count), "mean"
    rounded = math.sqrt(law.var() + noise.grid**2 / 12)
    assert abs(values.std() / rounded - 1) <= (0.005 if noise.law is Law.GAUSSIAN else 0.01), "standard deviation"
    points, counts = np.unique(values, return_counts=True)
    distance = np.abs(np.cumsum(counts) / count - law.cdf(points + noise.grid / 2)).max()
    assert distance <= math.sqrt(math.log(2e6) / (2 * count)), "distribution"  # Dvoretzky, Kiefer, Wolfowitz; Massart


NOISES = [
    *(input_noise(sigma, levels) for sigma, levels in CASES),
    input_noise(0.25, 255, Law.LAPLACE),
    layer_noise(0.3, Law.LAPLACE, 784, 3.0),
    layer_noise(0.3, Law.GAUSSIAN, 784, 3.0),
]
each_noise = pytest.mark.parametrize("noise", NOISES, ids=lambda noise: f"{noise.law} {noise.sigma} {noise.levels}")


@each_noise
def test_draws_are_multiples_of_the_grid_with_the_rounded_law(noise: GridNoise) -> None:
    drawn = _draws(noise)
    multiples = drawn.astype(np.float64) / noise.grid
    assert (multiples == np.rint(multiples)).all()
    _assert_law(drawn, noise)


@pytest.mark.parametrize("noise", NOISES[-3:], ids=lambda noise: f"{noise.law} {noise.levels}")
@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_planted_deviations_wrong_by_two_percent_are_caught(noise: GridNoise, factor: float) -> None:
    with pytest.raises(AssertionError, match=r"distribution|standard deviation"):
        _assert_law((np.rint(factor * _draws(noise) / noise.grid) * noise.grid).astype(np.float32), noise)


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
        _assert_law(planted(_draws(input_noise(0.25, 255))), input_noise(0.25, 255))


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


def test_tau_is_less_than_a_vote_is_worth() -> None:
    """A vote of ten thousand, by orders, even for the largest images."""
    for sigma, levels in CASES:
        noise = input_noise(sigma, levels)
        assert 2.0**-36 < noise.tau(1) < noise.tau(150_528) < 1e-7


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
    with pytest.raises(ConfigError, match="smoothing noise cannot be used"):
        layer_noise(sigma, Law.LAPLACE, 4, 1.0)


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


LAYERS = [
    (law, sigma, dimension, largest)
    for law in Law
    for sigma in (0.01, 0.3, 0.5, 4.0)
    for dimension, largest in ((1, 1.0), (16, 0.5), (784, 3.0), (6272, 12.0))
]


@pytest.mark.parametrize(("law", "sigma", "dimension", "largest"), LAYERS)
def test_the_grid_of_a_layer_is_fine_and_exact(law: Law, sigma: float, dimension: int, largest: float) -> None:
    noise = layer_noise(sigma, law, dimension, largest)
    assert math.frexp(noise.grid)[0] == 0.5
    assert noise.levels == 1
    assert 64 <= noise.steps <= 2**16
    cost = noise.grid * (math.sqrt(dimension) if law is Law.GAUSSIAN else dimension) / sigma
    assert cost <= 0.01 or noise.steps > 2**15 or largest / noise.grid > 2**22, "cheap, unless the table or float32 is full"
    edge = np.float32(noise.table.reach * noise.grid)
    ends = np.array([math.floor(noise.largest / noise.grid) * noise.grid, largest, 0.0])
    points = (np.rint(ends / noise.grid) * noise.grid).astype(np.float32)
    for draw in (edge, np.float32(noise.grid), np.float32(edge - noise.grid)):
        assert ((points + draw).astype(np.float64) == points.astype(np.float64) + float(draw)).all()


def test_a_layer_with_large_answers_gets_a_coarser_grid_and_then_none() -> None:
    fine, coarse = (layer_noise(0.5, Law.GAUSSIAN, 400, largest) for largest in (1.0, 40_000.0))
    assert coarse.grid > fine.grid
    assert coarse.steps >= 64
    with pytest.raises(ConfigError, match="not be exact in float32"):
        layer_noise(0.5, Law.GAUSSIAN, 400, 1e6)


@pytest.mark.parametrize(("law", "cells"), [(Law.GAUSSIAN, 17), (Law.LAPLACE, 72)])
def test_tau_is_the_documented_formula(law: Law, cells: int) -> None:
    for noise, steps in ((input_noise(0.5, 255, law), 127.5), (layer_noise(0.5, law, 784, 3.0), None)):
        known = noise.sigma * noise.levels / noise.grid if steps is None else steps
        assert noise.tau(784) == pytest.approx(784 * (cells * known * 2.0**-64 + 2.0**-49) + 2.0**-36, rel=1e-12)


def test_the_law_of_the_noise_at_the_input_changes_nothing_else() -> None:
    gaussian, other = input_noise(0.25, 255), input_noise(0.25, 255, Law.LAPLACE)
    assert (gaussian.grid, gaussian.steps, gaussian.largest) == (other.grid, other.steps, other.largest)
    assert gaussian.law is Law.GAUSSIAN


SIGMA, DRAWS = 0.5, 400_000


class Twofold(Spread):
    """Scales of 1 at least, and always 2: what is drawn beyond the least has a known law."""

    random = True

    def forward(self, noise: Tensor) -> Tensor:
        return 2 * noise

    def least(self) -> Tensor:
        return torch.ones(self.coordinates)


def _assert_law_rest(values: NDArray[np.float64], law: Law) -> None:
    """Noise of deviation 2 SIGMA; the false alarm is below 1e-6 (Massart)."""
    known, ordered = (norm if law is Law.GAUSSIAN else laplace), np.sort(values)
    exact = known.cdf(ordered / (2 * SIGMA))
    distance = np.abs(exact - np.arange(1, len(ordered) + 1) / len(ordered)).max()
    assert distance <= math.sqrt(math.log(2e6) / (2 * len(ordered))) + 1e-5, "distribution"


def _least_noise(law: Law) -> Tensor:
    torch.manual_seed(5)
    return SIGMA * standard_noise(law, (DRAWS, 1), CPU)


@pytest.mark.parametrize("law", list(Law))
def test_least_and_remaining_noise_are_together_the_layers_noise(law: Law) -> None:
    least = _least_noise(law)
    both = RemainingNoise(law, SIGMA, Twofold((1,)))(least)
    _assert_law_rest(np.asarray(both, dtype=np.float64)[:, 0], law)


@pytest.mark.parametrize("law", list(Law))
def test_planted_remainders_that_add_deviations_are_caught(law: Law) -> None:
    """Deviations of independent noise do not add up: 1 and another 1 are not 2."""
    least = _least_noise(law)
    with pytest.raises(AssertionError, match="distribution"):
        _assert_law_rest(np.asarray(least + SIGMA * standard_noise(law, (DRAWS, 1), CPU), dtype=np.float64)[:, 0], law)


def test_inside_numbers_repeat_and_outside_nothing_changes() -> None:
    key = Key.from_seed(1)
    torch.manual_seed(9)
    wanted = torch.rand(3)
    torch.manual_seed(9)
    drawn = []
    for numbers in ((0, 1), (0, 1), (0, 2)):
        with repeatable(CPU, key, "estimate", *numbers):
            drawn.append(torch.rand(4))
    assert torch.equal(torch.rand(3), wanted), "the caller's generator goes on where it was"
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def _network(spread: type[Spread] | None) -> nn.Module:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    def layer(shape: tuple[int, ...]) -> NoiseLayer:
        return NoiseLayer(shape, Law.GAUSSIAN, 0.4, UniformSpread(shape) if spread is None else RandomSpread(shape, 0.5))

    return add_noise(inner, (4,), Place.FIRST_LAYER, layer)


def test_a_randomly_spread_layer_gives_the_same_certificates_again() -> None:
    inputs = np.random.default_rng(2).integers(0, 256, size=(6, 4))
    smoothed = smooth(_network(RandomSpread))
    assert draws_noise(smoothed.site.network)
    assert not draws_noise(smooth(_network(None)).site.network)
    runs = []
    for seed, threads in ((1, 1), (2, 2)):
        torch.manual_seed(seed)
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        runs.append(smoothed.certify(inputs, sampling=Sampling(30, 300), key=Key.from_seed(3), rows=100))
        torch.set_num_threads(before)
    assert runs[0] == runs[1]
    assert len({one.votes for one in runs[0]}) > 1


def test_more_noise_than_the_least_is_really_drawn() -> None:
    """At the very same least noise the answers of a wider spread vary from draw to draw."""
    smoothed = smooth(_network(RandomSpread))
    points = smoothed.site.points(torch.full((1, 4), 128.0)).expand(500, 6)
    with torch.no_grad():
        assert smoothed.site.network(points).std(dim=0).min() > 0.01
