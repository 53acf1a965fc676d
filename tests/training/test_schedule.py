"""Schedules: where they begin and end, that they only go down, and that the loop takes its steps at their rates."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from training_problems import network

from twinproof.training.loop import GradientSource, Rate, Schedule, rate_of, run_loop, share_of_rate

STEPS = 12


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
    assert share_of_rate(schedule, step, STEPS) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("schedule", [Schedule.LINEAR, Schedule.COSINE])
def test_rates_go_down_and_never_reach_nothing(schedule: Schedule) -> None:
    rate = rate_of(schedule, 3.0, STEPS)
    assert rate is not None
    rates = [rate(step) for step in range(STEPS)]
    assert rates[0] == 3.0
    assert all(after < before for before, after in pairwise(rates))
    assert rates[-1] > 0


def test_a_constant_rate_is_left_to_the_optimiser() -> None:
    assert rate_of(Schedule.CONSTANT, 3.0, STEPS) is None


class Ones(GradientSource):
    """Gradients of ones."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._gradients = {name: torch.ones_like(value) for name, value in model.named_parameters()}

    def gradient(self, step: int) -> dict[str, torch.Tensor]:
        return self._gradients


def _moved(rate: Rate | None, *, first: int = 0) -> torch.nn.Module:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.5)
    run_loop(model, optimizer, Ones(model), first=first, steps=STEPS, after_step=lambda done: None, rate=rate)
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
    rate = rate_of(Schedule.COSINE, 0.3, STEPS)
    assert rate is not None
    rates = [rate(step) for step in range(first, STEPS)]
    assert _same(_moved(rate, first=first), _by_hand(rates))
    late = [rates[0], *rates[:-1]]
    assert not _same(_moved(rate, first=first), _by_hand(late)), "the comparison sees rates that come a step too late"


def test_without_a_schedule_the_rate_is_the_optimisers() -> None:
    assert _same(_moved(None), _by_hand([0.3] * STEPS))
