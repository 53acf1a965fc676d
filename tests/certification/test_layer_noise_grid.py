"""Noise of other laws and places on its grid: exact sums, the right law, and a grid that costs little."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import laplace, norm

from twinproof.certification.grid_noise import GridNoise, input_noise, layer_noise
from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.layers.noise import Law

CPU = torch.device("cpu")
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


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_unusable_deviations_are_refused(sigma: float) -> None:
    with pytest.raises(ConfigError, match="smoothing noise cannot be used"):
        layer_noise(sigma, Law.LAPLACE, 4, 1.0)


@pytest.mark.parametrize(("law", "cells"), [(Law.GAUSSIAN, 17), (Law.LAPLACE, 72)])
def test_tau_is_the_documented_formula(law: Law, cells: int) -> None:
    for noise, steps in ((input_noise(0.5, 255, law), 127.5), (layer_noise(0.5, law, 784, 3.0), None)):
        known = noise.sigma * noise.levels / noise.grid if steps is None else steps
        assert noise.tau(784) == pytest.approx(784 * (cells * known * 2.0**-64 + 2.0**-49) + 2.0**-36, rel=1e-12)


def test_the_law_of_the_noise_at_the_input_changes_nothing_else() -> None:
    gaussian, other = input_noise(0.25, 255), input_noise(0.25, 255, Law.LAPLACE)
    assert (gaussian.grid, gaussian.steps, gaussian.largest) == (other.grid, other.steps, other.largest)
    assert gaussian.law is Law.GAUSSIAN


def _drawn(noise: GridNoise, count: int = 1_000_000) -> NDArray[np.float64]:
    return np.asarray(noise.draws(Key.from_seed(1), "test", 0, 0, count // 1000, 1000, CPU), dtype=np.float64).reshape(-1)


def _assert_law(values: NDArray[np.float64], noise: GridNoise) -> None:
    """The distribution function at every point of the grid; a false alarm has probability below 1e-6 (Massart)."""
    law = norm if noise.law is Law.GAUSSIAN else laplace
    points, counts = np.unique(values, return_counts=True)
    empirical = np.cumsum(counts) / values.size
    distance = np.abs(empirical - law.cdf((points + noise.grid / 2) / (noise.sigma * noise.levels))).max()
    assert distance <= math.sqrt(math.log(2e6) / (2 * values.size)), "distribution"


NOISES = [
    input_noise(0.25, 255, Law.LAPLACE),
    layer_noise(0.3, Law.LAPLACE, 784, 3.0),
    layer_noise(0.3, Law.GAUSSIAN, 784, 3.0),
]


@pytest.mark.parametrize("noise", NOISES)
def test_the_law_is_the_rounded_one(noise: GridNoise) -> None:
    drawn = _drawn(noise)
    multiples = drawn / noise.grid
    assert (multiples == np.rint(multiples)).all()
    _assert_law(drawn, noise)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("factor", [0.98, 1.02])
def test_planted_deviations_wrong_by_two_percent_are_caught(noise: GridNoise, factor: float) -> None:
    with pytest.raises(AssertionError, match="distribution"):
        _assert_law(np.rint(factor * _drawn(noise) / noise.grid) * noise.grid, noise)
