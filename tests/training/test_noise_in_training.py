"""Private steps through a noise layer: its draws belong to the step, and a resumed run draws the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from training_problems import FEATURES, PATHS, Gradients, Problem, network, problem

from twinproof.layers.noise import Law, LearnedSpread, NoiseLayer, Place, RandomSpread, Spread, silenced
from twinproof.layers.noise_placement import add_noise
from twinproof.training.passes import Repeats


def _noisy(spread: type[Spread]) -> nn.Module:
    def layer(shape: tuple[int, ...]) -> NoiseLayer:
        return NoiseLayer(shape, Law.LAPLACE, 0.5, RandomSpread(shape, 0.5) if spread is RandomSpread else LearnedSpread(shape))

    return add_noise(network(), (FEATURES,), Place.FIRST_LAYER, layer).double()


def _steps(made: Problem, *, seed: int, silent: bool = False) -> list[Gradients]:
    """Three steps with the global generator wherever ``seed`` puts it."""
    torch.manual_seed(seed)
    state = torch.get_rng_state()
    if silent:
        with silenced(made.model):
            return [made.source.gradient(step) for step in range(3)]
    steps = [made.source.gradient(step) for step in range(3)]
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
    return steps


def _same(one: list[Gradients], two: list[Gradients]) -> bool:
    return all(torch.equal(a[name], b[name]) for a, b in zip(one, two, strict=True) for name in a)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("spread", [LearnedSpread, RandomSpread])
def test_the_draws_of_a_step_follow_from_the_key(tmp_path: Path, spread: type[Spread], path: str) -> None:
    found = [
        _steps(problem(tmp_path, model=_noisy(spread), augmentation=Repeats(2), path=PATHS[path]), seed=seed) for seed in (1, 2)
    ]
    assert _same(*found)
    silent = problem(tmp_path, model=_noisy(spread), augmentation=Repeats(2), path=PATHS[path])
    assert not _same(found[0], _steps(silent, seed=1, silent=True)), "the noise takes part: the test can see it"
