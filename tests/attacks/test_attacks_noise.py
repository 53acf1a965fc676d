"""Expectation over noise matters: what a random or smoothed network does must be attacked, noise and all."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from attack_problems import KEY, NoisyInput, digits, digits_network
from torch import Tensor, nn

from twinproof.attacks.objective import Expectation, Objective, Plain, Smoothed
from twinproof.attacks.run import predicted_labels, run_attack
from twinproof.attacks.search import pgd
from twinproof.attacks.threat import Threat
from twinproof.keys import Key

SIGMA, ROWS = 0.25, 200
THREAT = Threat("l2", 0.7)
DRAWS = (1, 8, 32)
# Accuracies are of 200 images; more draws never make an attack worse by more than three of them.
SLACK = 3 / ROWS


class Rippled(nn.Module):
    """A network with a fine ripple on its input: gradients at a point say nothing, means over noise smooth it away."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        scores: Tensor = self.network(inputs + 0.05 * torch.sin(60 * inputs))
        return scores


@functools.cache
def network() -> nn.Module:
    return Rippled(digits_network(SIGMA)).eval()


def data() -> tuple[Tensor, Tensor]:
    _, _, inputs, labels = digits()
    return inputs[:ROWS], labels[:ROWS]


def smoothed_accuracy(inputs: Tensor) -> float:
    """Of the smoothed classifier, over noise that no attack has seen."""
    votes = predicted_labels(Smoothed(network(), SIGMA, judged_on=500), inputs, key=Key.from_seed(99))
    return float((votes == data()[1]).float().mean())


def random_accuracy(inputs: Tensor) -> float:
    """Of the network with its noise layer, one fresh draw for each answer."""
    torch.manual_seed(99)
    random = NoisyInput(network(), SIGMA)
    with torch.no_grad():
        return float(torch.stack([(random(inputs).argmax(dim=1) == data()[1]).float() for _ in range(100)]).mean())


def after_attack(objective: Objective) -> Tensor:
    inputs, labels = data()
    return run_attack(pgd(20), objective, inputs, labels, THREAT, key=KEY, batch=ROWS).inputs


@functools.cache
def table() -> dict[str, dict[str, float]]:
    """Accuracy of both kinds of random network: clean, attacked without the noise, and with 1, 8 and 32 draws a step."""
    blind = after_attack(Plain(network()))
    rows = {
        "smoothed": {"clean": smoothed_accuracy(data()[0]), "no noise": smoothed_accuracy(blind)},
        "noise layer": {"clean": random_accuracy(data()[0]), "no noise": random_accuracy(blind)},
    }
    for draws in DRAWS:
        rows["smoothed"][str(draws)] = smoothed_accuracy(after_attack(Smoothed(network(), SIGMA, draws)))
        rows["noise layer"][str(draws)] = random_accuracy(after_attack(Expectation(NoisyInput(network(), SIGMA), draws)))
    return rows


@pytest.mark.parametrize("kind", ["smoothed", "noise layer"])
def test_more_draws_make_stronger_attacks(kind: str) -> None:
    row = table()[kind]
    accuracies = [row[str(draws)] for draws in DRAWS]
    assert all(more <= fewer + SLACK for fewer, more in itertools.pairwise(accuracies)), row
    assert accuracies[-1] < accuracies[0] - 0.1, row
    assert accuracies[-1] < row["clean"] - 0.3, row


@pytest.mark.parametrize("kind", ["smoothed", "noise layer"])
def test_planted_attack_without_the_noise_is_caught(kind: str) -> None:
    """Crafted on the network without its noise, as the papers' authors did, the same network looks robust."""
    row = table()[kind]
    assert row["no noise"] > row["32"] + 0.3, row


def test_fresh_draws_beat_shared_ones() -> None:
    """A few draws that all steps share are learnt by heart; points good on them are not good on others."""
    fresh, shared = (smoothed_accuracy(after_attack(Smoothed(network(), SIGMA, 8, shared=kind))) for kind in (False, True))
    assert fresh < shared - 0.1
