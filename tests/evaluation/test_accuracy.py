"""Clean accuracy counts every input once and leaves the model as it found it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from twinproof.errors import UserError
from twinproof.evaluation.accuracy import binomial_interval, clean_accuracy
from twinproof.layers.noise import Law, NoiseLayer, UniformSpread


class Echo(nn.Module):
    """Scores are the input itself; remembers in which mode it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.modes.append((self.training, torch.is_inference_mode_enabled()))
        return inputs


def one_hot(answers: list[int], classes: int = 3) -> torch.Tensor:
    return torch.nn.functional.one_hot(torch.tensor(answers), classes).float()


@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 4096])
def test_every_input_counts_once_whatever_the_batch(batch_size: int) -> None:
    answers, labels = one_hot([0, 1, 2, 1, 0]), torch.tensor([0, 1, 0, 1, 2])
    result = clean_accuracy(Echo(), answers, labels, batch_size=batch_size)
    assert (result.correct, result.total) == (3, 5)
    assert result.interval == binomial_interval(3, 5)
    right, wrong = -math.log(math.e / (math.e + 2)), -math.log(1 / (math.e + 2))
    assert result.loss == pytest.approx((3 * right + 2 * wrong) / 5, rel=1e-12)
    assert set(result.as_dict()) == {"value", "low", "high", "confidence", "correct", "total"}


def test_runs_in_eval_and_inference_mode_and_restores_each_module() -> None:
    model = nn.Sequential(Echo(), nn.Dropout(0.9), nn.BatchNorm1d(3))
    model.train()
    model[2].eval()  # frozen by its owner
    clean_accuracy(model, one_hot([0, 1, 2]), torch.tensor([0, 1, 2]), batch_size=2)
    echo = model[0]
    assert isinstance(echo, Echo)
    assert echo.modes == [(False, True), (False, True)]
    assert (model.training, model[1].training, model[2].training) == (True, True, False)


def test_restores_the_mode_after_an_error() -> None:
    class Broken(nn.Module):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no")

    model = Broken().train()
    with pytest.raises(RuntimeError, match="no"):
        clean_accuracy(model, one_hot([0]), torch.tensor([0]))
    assert model.training


def test_a_nan_is_a_wrong_answer() -> None:
    answers = one_hot([0, 1])
    answers[0, 0] = math.nan  # argmax would point at the NaN and call it right
    assert int(answers[0].argmax()) == 0
    assert clean_accuracy(Echo(), answers, torch.tensor([0, 1])).correct == 1


def test_a_noisy_network_answers_in_the_mean_over_its_noise_and_the_same_each_time() -> None:
    model = nn.Sequential(NoiseLayer((3,), Law.GAUSSIAN, 1.0, UniformSpread((3,))), Echo())
    answers, labels = one_hot([0, 1, 2] * 200), torch.tensor([0, 1, 2] * 200)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, second = (clean_accuracy(model, answers, labels) for _ in range(2))
    assert first == second
    assert torch.equal(before, torch.get_rng_state()), "nothing was drawn from the caller's numbers"
    single = int((model(answers).argmax(1) == labels).sum())
    assert single + 60 < first.correct < 600, "one draw is wrong more often than the mean of sixteen, which is not silence"
    whole = clean_accuracy(nn.Sequential(Echo()), answers, labels)
    assert whole.correct == 600


@pytest.mark.parametrize(
    ("inputs", "labels", "batch_size", "message"),
    [
        (one_hot([0]), torch.tensor([0, 1]), 4, "inputs and labels differ"),
        (one_hot([0])[:0], torch.tensor([], dtype=torch.int64), 4, "nothing to evaluate"),
        (one_hot([0]), torch.tensor([0]), 0, "batch_size cannot"),
    ],
)
def test_refuses(inputs: torch.Tensor, labels: torch.Tensor, batch_size: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        clean_accuracy(Echo(), inputs, labels, batch_size=batch_size)
