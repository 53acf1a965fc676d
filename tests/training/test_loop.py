"""The loop: one optimiser step for each gradient, at the rate of its step, and nothing carried over."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from training_problems import Gradients, distance, hand_step, network, problem

from twinproof.training.loop import Rate, Schedule, Update, rate_of, run_loop
from twinproof.training.sources import GradientSource

RATE, MOMENTUM, STEPS = 0.3, 0.9, 4


class Listed(GradientSource):
    """Gradients written down beforehand; remembers which steps were asked for."""

    def __init__(self, gradients: list[Gradients]) -> None:
        self._gradients = gradients
        self.asked: list[int] = []

    def gradient(self, step: int) -> Gradients:
        self.asked.append(step)
        return self._gradients[step]


def _weights(model: torch.nn.Module) -> Gradients:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def _momentum_by_hand(start: Gradients, gradients: list[Gradients], momentum: float) -> Gradients:
    weights, velocity = dict(start), {name: torch.zeros_like(value) for name, value in start.items()}
    for gradient in gradients:
        velocity = {name: momentum * velocity[name] + gradient[name] for name in velocity}
        weights = {name: weights[name] - RATE * velocity[name] for name in weights}
    return weights


def test_private_steps_with_momentum_equal_the_hand_written_ones(tmp_path: Path) -> None:
    given, oracle = problem(tmp_path / "a"), problem(tmp_path / "b")
    velocity: dict[str, Tensor] = {name: torch.zeros_like(value) for name, value in oracle.model.named_parameters()}
    for step in range(STEPS):
        gradient = hand_step(oracle, step)
        with torch.no_grad():
            for name, value in oracle.model.named_parameters():
                velocity[name] = MOMENTUM * velocity[name] + gradient[name]
                value.sub_(RATE * velocity[name])
    optimizer = torch.optim.SGD(given.model.parameters(), lr=RATE, momentum=MOMENTUM)
    run_loop(given.model, optimizer, given.source, first=0, steps=STEPS, after_step=lambda done: None)
    assert distance(_weights(given.model), _weights(oracle.model)) < 1e-6


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_are_taken_in_order(momentum: float) -> None:
    model = network()
    start = _weights(model)
    gradients = [{name: torch.full_like(value, step + 1.0) for name, value in start.items()} for step in range(STEPS)]
    source, taken = Listed(gradients), list[int]()
    run_loop(
        model,
        torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum),
        source,
        first=1,
        steps=STEPS,
        after_step=taken.append,
    )
    assert source.asked == [1, 2, 3]
    assert taken == [2, 3, 4]
    assert distance(_weights(model), _momentum_by_hand(start, gradients[1:], momentum)) < 1e-12
    assert distance(_weights(model), _momentum_by_hand(start, gradients, momentum)) > 1e-3, "the check tells a step too many"


SCHEDULED = 12


@pytest.mark.parametrize(
    ("schedule", "step", "wanted"),
    [
        (Schedule.CONSTANT, 11, 1.0),
        (Schedule.LINEAR, 0, 1.0),
        (Schedule.LINEAR, 6, 0.5),
        (Schedule.LINEAR, 11, 1 / 12),
        (Schedule.COSINE, 0, 1.0),
        (Schedule.COSINE, 3, 0.5 * (1 + math.sqrt(0.5))),
        (Schedule.COSINE, 6, 0.5),
    ],
)
def test_shares_at_known_places(schedule: Schedule, step: int, wanted: float) -> None:
    rate = rate_of(schedule, 1.0, SCHEDULED)
    assert wanted == 1.0 if rate is None else rate(step) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("schedule", [Schedule.LINEAR, Schedule.COSINE])
def test_rates_go_down_and_never_reach_nothing(schedule: Schedule) -> None:
    rate = rate_of(schedule, 3.0, SCHEDULED)
    assert rate is not None
    rates = [rate(step) for step in range(SCHEDULED)]
    assert rates[0] == 3.0
    assert all(after < before for before, after in pairwise(rates))
    assert rates[-1] > 0


def test_a_constant_rate_is_left_to_the_optimiser() -> None:
    assert rate_of(Schedule.CONSTANT, 3.0, SCHEDULED) is None


class Ones(GradientSource):
    """Gradients of ones."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._gradients = {name: torch.ones_like(value) for name, value in model.named_parameters()}

    def gradient(self, step: int) -> dict[str, torch.Tensor]:
        return self._gradients


def _moved(rate: Rate | None, *, first: int = 0) -> torch.nn.Module:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
    run_loop(model, optimizer, Ones(model), first=first, steps=SCHEDULED, after_step=lambda done: None, rate=rate)
    return model


def _by_hand(rates: list[float]) -> torch.nn.Module:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    for rate in rates:
        optimizer.param_groups[0]["lr"] = rate
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    return model


def _same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("first", [0, 5])
def test_the_loop_steps_at_the_rate_of_each_step(first: int) -> None:
    """Bit for bit torch's own steps at those rates, also where a run goes on in the middle."""
    rate = rate_of(Schedule.COSINE, 0.3, SCHEDULED)
    assert rate is not None
    rates = [rate(step) for step in range(first, SCHEDULED)]
    assert _same(_moved(rate, first=first), _by_hand(rates))
    late = [rates[0], *rates[:-1]]
    assert not _same(_moved(rate, first=first), _by_hand(late)), "the comparison sees rates that come a step too late"


def test_without_a_schedule_the_rate_is_the_optimisers() -> None:
    assert _same(_moved(None), _by_hand([0.3] * SCHEDULED))


Maker = Callable[[nn.Module], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Maker] = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.3),
    "momentum": lambda model: torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9),
}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


def _model(device: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
    model[0].bias.requires_grad_(False)
    return model


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_update_is_the_optimisers(name: str, device: str) -> None:
    ours, theirs = _model(device), _model(device)
    update, plain = Update(ours, OPTIMIZERS[name](ours)), OPTIMIZERS[name](theirs)
    generator = torch.Generator().manual_seed(1)
    for _ in range(6):
        gradients = {
            key: torch.randn(value.shape, generator=generator, dtype=torch.float64).to(device)
            for key, value in ours.named_parameters()
            if value.requires_grad
        }
        update(gradients)
        for key, value in theirs.named_parameters():
            value.grad = gradients[key].to(value) if key in gradients else None
        plain.step()
    for (key, value), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(value, other), key
