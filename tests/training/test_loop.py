"""The loop: one optimiser step for each gradient, momentum as ``torch.optim.SGD`` has it, nothing carried over by mistake."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from training_problems import Gradients, distance, hand_step, network, problem

from twinproof.training.loop import GradientSource, run_loop

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


def _by_hand(start: Gradients, gradients: list[Gradients], momentum: float) -> Gradients:
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
def test_steps_are_taken_in_order_and_told(momentum: float) -> None:
    model = network()
    start = _weights(model)
    gradients = [{name: torch.full_like(value, step + 1.0) for name, value in start.items()} for step in range(STEPS)]
    source, told = Listed(gradients), list[int]()
    run_loop(
        model,
        torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum),
        source,
        first=1,
        steps=STEPS,
        after_step=told.append,
    )
    assert source.asked == [1, 2, 3]
    assert told == [2, 3, 4]
    assert distance(_weights(model), _by_hand(start, gradients[1:], momentum)) < 1e-12
    assert distance(_weights(model), _by_hand(start, gradients, momentum)) > 1e-3, "the check tells a step too many"


def test_gradients_do_not_accumulate_between_steps() -> None:
    model = network()
    start = _weights(model)
    gradients = [{name: torch.ones_like(value) for name, value in start.items()} for _ in range(2)]
    run_loop(
        model, torch.optim.SGD(model.parameters(), lr=RATE), Listed(gradients), first=0, steps=2, after_step=lambda done: None
    )
    accumulated = [gradients[0], {name: 2 * value for name, value in gradients[1].items()}]
    assert distance(_weights(model), _by_hand(start, gradients, 0.0)) < 1e-12
    assert distance(_weights(model), _by_hand(start, accumulated, 0.0)) > 1e-3
