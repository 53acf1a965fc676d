"""The moving average is the weighted mean of the steps' weights, disturbs nobody, and survives a checkpoint to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training_problems import network, problem

from twinproof.errors import ConfigError, RunError
from twinproof.training.loop import WeightAverage, load_checkpoint, run_loop, save_checkpoint

DECAY = 0.7


def _weights(model: nn.Module) -> list[Tensor]:
    return [value.detach().clone() for value in model.parameters()]


def _move(model: nn.Module, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn(value.shape, generator=generator, dtype=value.dtype))
    return _weights(model)


def _weighted_mean(history: list[list[Tensor]], decay: float) -> list[Tensor]:
    counts = [decay ** (len(history) - number) for number in range(1, len(history) + 1)]
    return [
        sum((count * value for count, value in zip(counts, values, strict=True)), torch.zeros_like(values[0])) / sum(counts)
        for values in zip(*history, strict=True)
    ]


def _near(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(one, other, strict=True))


def _same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def _averaged(model: nn.Module, average: WeightAverage) -> list[Tensor]:
    with average.in_place():
        return _weights(model)


@pytest.mark.parametrize("decay", [0.0, 0.5, DECAY, 0.99])
def test_the_average_is_the_weighted_mean_of_all_steps(decay: float) -> None:
    model = network()
    initial, average, history = _weights(model), WeightAverage(model, decay), list[list[Tensor]]()
    for step in range(6):
        history.append(_move(model, step))
        average.add(step + 1)
        assert _near(_averaged(model, average), _weighted_mean(history, decay))
    assert not _near(_averaged(model, average), _weighted_mean([initial, *history], max(decay, 0.1))), "nor the initial weights"


def test_a_planted_average_without_correction_is_caught() -> None:
    """With one share for all steps the random initial weights stay in it: after three steps at 0.99 nearly alone."""

    class Uncorrected(WeightAverage):
        def add(self, done: int) -> None:
            super().add(10**6)

    model = network()
    average, history = Uncorrected(model, DECAY), list[list[Tensor]]()
    for step in range(3):
        history.append(_move(model, step))
        average.add(step + 1)
    assert not _near(_averaged(model, average), _weighted_mean(history, DECAY))


def test_the_network_gets_its_own_weights_back_where_they_were() -> None:
    model = network()
    average = WeightAverage(model, DECAY)
    for step in range(2):
        own = _move(model, step)
        average.add(step + 1)
    places = [value.data_ptr() for value in model.parameters()]

    def fail_inside() -> None:
        with average.in_place():
            assert not _same(_weights(model), own)
            assert [value.data_ptr() for value in model.parameters()] == places
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert _same(_weights(model), own)
    assert [value.data_ptr() for value in model.parameters()] == places


def test_what_is_not_trained_is_not_averaged() -> None:
    model = network()
    frozen = next(model.parameters()).requires_grad_(False)
    average = WeightAverage(model, DECAY)
    _move(model, 0)
    average.add(1)
    moved = _move(model, 1)
    average.add(2)
    assert "0.weight" not in average.state()
    with average.in_place():
        assert torch.equal(frozen, moved[0])


def test_private_training_goes_on_as_without_an_average(tmp_path: Path) -> None:
    plain, watched = problem(tmp_path / "a"), problem(tmp_path / "b")
    average, history = WeightAverage(watched.model, DECAY), list[list[Tensor]]()

    def look(done: int) -> None:
        with average.in_place():
            pass
        history.append(_weights(watched.model))

    for given, mean in ((plain, None), (watched, average)):
        optimizer = torch.optim.SGD(given.model.parameters(), lr=0.3, momentum=0.9)
        after = look if mean is not None else lambda done: None
        run_loop(given.model, optimizer, given.source, first=0, steps=4, after_step=after, average=mean)
    assert _same(_weights(plain.model), _weights(watched.model))
    assert _near(_averaged(watched.model, average), _weighted_mean(history, DECAY))


def _with_average(steps: int) -> tuple[nn.Module, torch.optim.Optimizer, WeightAverage]:
    model = network()
    average = WeightAverage(model, DECAY)
    for step in range(steps):
        _move(model, step)
        average.add(step + 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), average


@pytest.mark.parametrize("steps", [1, 3])
def test_a_checkpoint_carries_the_average_to_the_bit(tmp_path: Path, steps: int) -> None:
    model, optimizer, average = _with_average(steps)
    save_checkpoint(tmp_path, model, optimizer, step=steps, binding="a", average=average)
    again, other, restored = _with_average(0)
    assert load_checkpoint(tmp_path, again, other, binding="a", average=restored) == steps
    assert _same(_averaged(model, average), _averaged(again, restored))
    for step in range(steps, steps + 2):
        for moved, mean in ((model, average), (again, restored)):
            _move(moved, step)
            mean.add(step + 1)
    assert _same(_averaged(model, average), _averaged(again, restored))
    lost = WeightAverage(again, DECAY)
    lost.add(steps + 3)
    assert not _same(_averaged(model, average), _averaged(again, lost)), "the comparison sees a lost average"


def test_a_checkpoint_without_its_average_changes_nothing(tmp_path: Path) -> None:
    model, optimizer, _ = _with_average(2)
    save_checkpoint(tmp_path, model, optimizer, step=2, binding="a")
    again, other, restored = _with_average(0)
    with pytest.raises(RunError, match=r"no average of the weights(.|\n)*0\.weight"):
        load_checkpoint(tmp_path, again, other, binding="a", average=restored)
    assert _same(_weights(again), _weights(network()))


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_a_decay_that_never_forgets_is_refused(decay: float) -> None:
    with pytest.raises(ConfigError, match="decay is too large"):
        WeightAverage(network(), decay)
