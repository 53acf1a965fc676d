"""The noise that really reaches a released gradient: its scale, its law, its independence, its grid, and that it comes once.

A million draws go through the real training path with gradients that are exactly zero, so that what is released is noise alone.
With 1e6 draws the deviation is known to 0.07 %: 0.5 % is seven standard errors, and an error of 1 % is seven beyond that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from private_path import CLASSES, Records, TrainingPath, flat, make_plan, new_ledger, parameter_count
from scipy import stats
from torch import Tensor, nn

from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.privacy.plan import Draw, PrivateExecution
from twinproof.privacy.step_randomness import DeviceRandomness

STEPS = 100
MULTIPLIER, CLIP, DIVISOR = 1.3, 0.7, 24.0
WANTED = MULTIPLIER * CLIP / DIVISOR
SMALLEST_P = 1e-6


def zero_loss(logits: Tensor, label: Tensor) -> Tensor:
    """A loss whose gradient is exactly zero: records are drawn and pass through everything, and add nothing."""
    return (logits * 0).sum() + label * 0


def make_path(folder: Path, **changes: Any) -> TrainingPath:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 150, bias=False), nn.ReLU(), nn.Linear(150, CLASSES))
    assert parameter_count(model) * STEPS >= 1e6
    plan = make_plan(sample_rate=0.1, noise_multiplier=MULTIPLIER, clip_norm=CLIP, divisor=DIVISOR, steps=STEPS)
    path = TrainingPath(model, plan, new_ledger(folder), (64,), loss=zero_loss, physical_batch=8)
    return replace(path, **changes)


def some_records(count: int = 20) -> Records:
    generator = np.random.default_rng(0)
    return generator.integers(0, 256, (count, 64)).astype(np.uint8), generator.integers(0, CLASSES, count)


def released(path: TrainingPath, data: Records, steps: int = STEPS) -> NDArray[np.float64]:
    """(steps, parameters): what the optimiser would be given."""
    source, _ = path.source(data)
    return np.stack([flat(source.gradient(step)) for step in range(steps)])


def scale_is_right(noise: NDArray[np.float64]) -> bool:
    return abs(float(noise.std()) / WANTED - 1) <= 0.005 and abs(float(noise.mean())) <= 6 * WANTED / math.sqrt(noise.size)


def steps_are_independent(noise: NDArray[np.float64]) -> bool:
    """No two steps correlate by more than six standard errors, and no number comes twice in the same place."""
    correlations = np.atleast_2d(np.corrcoef(noise))[np.triu_indices(len(noise), 1)]
    return bool(np.abs(correlations).max() < 6.5 / math.sqrt(noise.shape[1]))


@pytest.fixture(scope="module", autouse=True, params=["of the host", "of a device"])
def _randomness(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test of this file runs with both sources of randomness; the device's is run on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "of a device":
            patch.setattr("twinproof.privacy.plan.step_randomness", DeviceRandomness)
        yield


@pytest.fixture(scope="module")
def noise(_randomness: None, tmp_path_factory: pytest.TempPathFactory) -> NDArray[np.float64]:
    return released(make_path(tmp_path_factory.mktemp("noise")), some_records())


def test_the_deviation_is_the_one_accounted_for(noise: NDArray[np.float64]) -> None:
    assert noise.size >= 1_000_000
    assert scale_is_right(noise)


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_planted_wrong_deviation_is_caught(tmp_path: Path, factor: float) -> None:
    path = make_path(tmp_path)
    wrong = replace(path, plan=replace(path.plan, noise_multiplier=MULTIPLIER * factor))
    assert not scale_is_right(released(wrong, some_records()))


def test_an_empty_draw_gets_the_same_noise(tmp_path: Path, noise: NDArray[np.float64]) -> None:
    """Poisson draws are sometimes empty: the step must be taken all the same, with all of its noise."""
    path = make_path(tmp_path)
    nobody = (np.zeros((0, 64), np.uint8), np.zeros(0, np.int64))
    assert np.array_equal(released(path, nobody, steps=3), noise[:3])


def test_the_law_is_normal(noise: NDArray[np.float64]) -> None:
    assert stats.kstest(noise.ravel() / WANTED, "norm").pvalue >= SMALLEST_P
    counts = np.histogram(stats.norm.cdf(noise.ravel() / WANTED), bins=200, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue >= SMALLEST_P
    for order, value in ((3, 0.0), (4, 3.0)):
        moment = float(((noise / WANTED) ** order).mean())
        assert abs(moment - value) < 6 * math.sqrt({3: 15, 4: 96}[order] / noise.size)


def test_planted_other_law_is_caught() -> None:
    """Uniform noise of the right deviation passes the test of scale and fails the test of law."""
    uniform = np.random.default_rng(0).uniform(-math.sqrt(3), math.sqrt(3), 1_000_000)
    assert scale_is_right(uniform * WANTED)
    assert stats.kstest(uniform, "norm").pvalue < SMALLEST_P


def test_noise_differs_between_steps_and_parameters(noise: NDArray[np.float64]) -> None:
    assert steps_are_independent(noise)
    halves = noise[:, : noise.shape[1] // 2].ravel(), noise[:, noise.shape[1] // 2 :][:, : noise.shape[1] // 2].ravel()
    assert abs(np.corrcoef(*halves)[0, 1]) < 6 / math.sqrt(halves[0].size)
    for step in noise[:5]:
        # Parameters that shared noise would show hundreds of numbers twice; chance alone, one in a hundred steps.
        assert len(np.unique(step)) >= noise.shape[1] - 3
    neighbours = np.corrcoef(noise[:, :-1].ravel(), noise[:, 1:].ravel())[0, 1]
    assert abs(neighbours) < 6 / math.sqrt(noise.size)


class OneNoiseForAllSteps(PrivateExecution):
    """Planted: noise drawn once and reused."""

    def _noisy(self, step: int, sums: Mapping[str, Tensor]) -> Any:
        return super()._noisy(0, sums)


class NoiseTwice(PrivateExecution):
    """Planted: noise added in two places."""

    def release(self, draw: Draw, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        extra = {name: value * self.plan.divisor for name, value in super()._noisy(draw.step + STEPS, sums).items()}
        return super().release(draw, extra)


def test_planted_reused_and_double_noise_are_caught(tmp_path: Path) -> None:
    reused = released(make_path(tmp_path, execution=OneNoiseForAllSteps), some_records(), steps=10)
    assert not steps_are_independent(reused)
    (tmp_path / "twice").mkdir()
    assert not scale_is_right(released(make_path(tmp_path / "twice", execution=NoiseTwice), some_records(), steps=20))


def test_released_values_are_whole_multiples_of_the_grid(tmp_path: Path, noise: NDArray[np.float64]) -> None:
    plan = make_path(tmp_path).plan
    unit = plan.grid / plan.divisor
    assert math.log2(plan.grid).is_integer()
    whole = np.rint(noise / unit)
    assert np.array_equal(whole * unit, noise)
    assert np.abs(whole).max() < 2**53
    assert len(np.unique(whole % 2)) == 2  # the grid is really used down to its last bit


@pytest.mark.parametrize("clip", [1e-3, 0.7, 1.0, 300.0])
def test_sum_and_noise_meet_exactly(tmp_path: Path, clip: float) -> None:
    """release(S) - release(0) is round(S) to the last bit: nothing of S is left in the low bits of the sum with noise."""
    parameters = 2000
    plan = make_plan(clip_norm=clip, noise_multiplier=2.0, steps=2, divisor=1.0)
    first, second = (
        PrivateExecution(plan, Key.from_seed(1), new_ledger(tmp_path, str(n)), records=4, parameters=parameters) for n in (0, 1)
    )
    total = torch.from_numpy(np.random.default_rng(5).normal(0, 1000 * clip, parameters))
    with_sum = first.release(first.draw(0), {"w": total})["w"]
    without = second.release(second.draw(0), {"w": torch.zeros(parameters)})["w"]
    assert torch.equal(with_sum - without, torch.round(total / plan.grid) * plan.grid)


def test_a_draw_is_released_once(tmp_path: Path) -> None:
    execution = PrivateExecution(make_plan(steps=3), Key.from_seed(1), new_ledger(tmp_path), records=4, parameters=2)
    sums = {"w": torch.zeros(2)}
    first = execution.draw(0)
    execution.release(first, sums)
    with pytest.raises(ConfigError, match="noise would be used twice"):
        execution.release(first, sums)
    with pytest.raises(ConfigError, match="noise would be used twice"):
        execution.release(execution.draw(0), sums)
    execution.release(execution.draw(1), sums)


def test_sums_must_cover_the_parameters(tmp_path: Path) -> None:
    """With fewer parameters than the threshold was made for, or more, the sensitivity would be another one."""
    execution = PrivateExecution(make_plan(), Key.from_seed(1), new_ledger(tmp_path), records=4, parameters=3)
    with pytest.raises(ConfigError, match="do not cover the parameters"):
        execution.release(execution.draw(0), {"w": torch.zeros(2)})
