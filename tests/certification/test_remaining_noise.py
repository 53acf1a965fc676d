"""What a randomly spread layer draws beyond its least noise: together the right law, repeatable, and nobody else's business."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import laplace, norm
from torch import Tensor, nn

from twinproof.certification.grid_noise import RemainingNoise, draws_noise, repeatable
from twinproof.certification.method import Sampling
from twinproof.certification.smoothed import smooth
from twinproof.keys import Key
from twinproof.layers.noise import Law, NoiseLayer, Place, RandomSpread, Spread, UniformSpread, standard_noise
from twinproof.layers.noise_placement import add_noise

CPU, SIGMA, DRAWS = torch.device("cpu"), 0.5, 400_000


class Twofold(Spread):
    """Scales of 1 at least, and always 2: what is drawn beyond the least has a known law."""

    random = True

    def forward(self, noise: Tensor) -> Tensor:
        """Twice the noise."""
        return 2 * noise

    def least(self) -> Tensor:
        """Ones."""
        return torch.ones(self.coordinates)


def _assert_law(values: NDArray[np.float64], law: Law) -> None:
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
    _assert_law(np.asarray(both, dtype=np.float64)[:, 0], law)


@pytest.mark.parametrize("law", list(Law))
def test_planted_remainders_that_add_deviations_are_caught(law: Law) -> None:
    """Deviations of independent noise do not add up: 1 and another 1 are not 2."""
    least = _least_noise(law)
    with pytest.raises(AssertionError, match="distribution"):
        _assert_law(np.asarray(least + SIGMA * standard_noise(law, (DRAWS, 1), CPU), dtype=np.float64)[:, 0], law)


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
