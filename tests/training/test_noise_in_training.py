"""Private steps through a noise layer: its draws belong to the step, also where a GPU replays a recording."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from training_problems import FEATURES, PATHS, Gradients, Problem, network, problem

from twinproof.compute.devices import Captured
from twinproof.layers.noise import Law, LearnedSpread, NoiseLayer, Place, RandomSpread, Spread, silenced
from twinproof.layers.noise_constraint import Constraint, WeightRule
from twinproof.layers.noise_placement import add_noise, split_at_noise
from twinproof.privacy.operator_norm import operator_norm
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


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def _on_gpu() -> nn.Sequential:
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Conv2d(1, 4, 4, stride=2, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(100, 3))
    network = add_noise(
        plain, (1, 10, 10), Place.FIRST_LAYER, lambda shape: NoiseLayer(shape, Law.GAUSSIAN, 0.5, LearnedSpread(shape))
    )
    return network.to("cuda")


@needs_gpu
@pytest.mark.parametrize("law", list(Law))
def test_a_recording_draws_fresh_noise_and_repeats_after_a_seed(law: Law) -> None:
    layer = NoiseLayer((50,), law, 2.0, LearnedSpread((50,))).to("cuda")
    inputs, out = torch.zeros(200, 50, device="cuda"), torch.empty(200, 50, device="cuda")

    def write() -> None:
        out.copy_(layer(inputs))

    work = Captured(write, torch.device("cuda"))
    seen = []
    with torch.no_grad():
        for seed in (1, 2, 3, 4, 5, 4):
            torch.cuda.manual_seed(seed)
            work()
            seen.append(out.clone())
    assert work.is_recorded
    assert not torch.equal(seen[3], seen[4]), "a replay that repeats its noise would be one draw for all steps"
    assert torch.equal(seen[3], seen[5])
    assert len(torch.unique(seen[4][:, 0])) > 190, "rows share no noise"
    layer.set_deviation(0.0)
    work()
    assert bool((out == 0).all()), "the recording reads the deviation as it is now"


@needs_gpu
def test_a_recorded_constraint_holds_the_norm() -> None:
    network, constraint = _on_gpu(), Constraint(WeightRule.PARSEVAL, "linf", Law.GAUSSIAN, 0.1, (1, 10, 10))
    hold = Captured(lambda: constraint.apply(network), torch.device("cuda"))
    split = split_at_noise(network)
    assert split is not None
    assert isinstance(split.before, nn.Conv2d)
    for _ in range(6):
        with torch.no_grad():
            split.before.weight.mul_(7.0)
        hold()
    assert hold.is_recorded
    layer = nn.Conv2d(1, 4, 4, stride=2, padding=1)
    layer.load_state_dict(split.before.state_dict())
    norm = operator_norm(layer, (1, 10, 10), source="linf", target="l2", scale=split.noise.spread.least_scales()).value
    assert 0.95 < norm / 10 < 1.06
    assert float(split.noise.deviation) == pytest.approx(1.0)
