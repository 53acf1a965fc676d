"""ART's attacks under our checks."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch
from attack_problems import KEY, batch_of, digits, digits_network, float64_length, smooth_network
from torch import nn

from twinproof.attacks.art_adapter import run_with_art
from twinproof.attacks.objective import Expectation, Smoothed
from twinproof.attacks.run import run_attack
from twinproof.attacks.search import fgsm
from twinproof.attacks.threat import Threat
from twinproof.errors import ConfigError, DataError, MissingExtra

IMAGES = nn.Sequential(nn.Flatten(), digits_network()).eval()


def images(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    _, _, inputs, labels = digits()
    return inputs[:rows].reshape(-1, 1, 8, 8), labels[:rows]


@pytest.mark.parametrize(
    ("name", "norm", "size", "options"),
    [
        ("auto-pgd", "linf", 0.1, {"max_iter": 5, "nb_random_init": 1}),
        ("auto-pgd", "l2", 0.5, {"max_iter": 5, "nb_random_init": 1}),
        ("square", "linf", 0.1, {"max_iter": 30}),
        ("deepfool", "l2", 0.7, {"max_iter": 10, "batch_size": 20}),
        ("elastic-net", "l1", 3.0, {"max_iter": 20, "initial_const": 1.0, "batch_size": 20}),
    ],
)
def test_their_attacks_keep_our_promises(name: str, norm: str, size: float, options: dict[str, Any]) -> None:
    inputs, labels = images(20)
    threat = Threat(norm, size)
    before = np.random.get_state(legacy=False)
    result = run_with_art(name, IMAGES, inputs, labels, threat, key=KEY, **options)
    assert (float64_length(result.inputs, inputs, norm) <= size).all()
    assert (result.losses >= result.starting_losses).all()
    assert result.success.sum() > (result.starting_predictions != labels).sum()
    assert torch.equal(result.predictions, IMAGES(result.inputs).argmax(dim=1))
    again = run_with_art(name, IMAGES, inputs, labels, threat, key=KEY, **options)
    assert torch.equal(result.inputs, again.inputs)
    after = np.random.get_state(legacy=False)
    np.testing.assert_array_equal(before["state"]["key"], after["state"]["key"])
    assert before["state"]["pos"] == after["state"]["pos"]


def test_auto_attack_runs() -> None:
    from art.attacks.evasion import AutoAttack, AutoProjectedGradientDescent

    def small(classifier: Any, threat: Threat) -> Any:
        part = AutoProjectedGradientDescent(
            classifier, norm=np.inf, eps=threat.size, eps_step=threat.size, max_iter=5, loss_type="difference_logits_ratio"
        )
        return AutoAttack(classifier, norm=np.inf, eps=threat.size, eps_step=threat.size, attacks=[part])

    inputs, labels = images(20)
    result = run_with_art(small, IMAGES, inputs, labels, Threat("linf", 0.1), key=KEY)
    assert result.success.float().mean() > 0.3


@pytest.mark.parametrize("kind", ["expectation", "smoothed"])
def test_random_networks_are_attacked_with_their_noise(kind: str) -> None:
    from art.attacks.evasion import FastGradientMethod

    target = Smoothed(IMAGES, 0.2, 4) if kind == "smoothed" else Expectation(IMAGES, 2)
    inputs, labels = images(40)
    threat = Threat("linf", 0.1)
    result = run_with_art(
        lambda classifier, threat: FastGradientMethod(classifier, eps=threat.size), target, inputs, labels, threat, key=KEY
    )
    own = run_attack(fgsm(), target, inputs, labels, threat, key=KEY)
    assert abs(float(result.losses.mean()) - float(own.losses.mean())) < 0.2 * float(own.losses.mean())


def test_an_attack_that_leaves_the_ball_is_brought_back_and_parameters_keep_their_gradients() -> None:
    class Wild:
        def generate(self, x: Any, y: Any) -> Any:
            return x + 10

    model, (inputs, labels) = smooth_network(), batch_of(6)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    result = run_with_art(lambda classifier, threat: Wild(), model, inputs, labels, Threat("l2", 0.2), key=KEY)
    assert (float64_length(result.inputs, inputs, "l2") <= 0.2).all()
    run_with_art("auto-pgd", model, inputs, labels, Threat("l2", 0.2), key=KEY, max_iter=2, nb_random_init=1)
    assert all(parameter.grad is not None and bool((parameter.grad == 1).all()) for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(("size", "rows"), [(0.0, 4), (0.1, 0)])
def test_nothing_to_do(size: float, rows: int) -> None:
    inputs, labels = batch_of(rows)
    result = run_with_art("auto-pgd", smooth_network(), inputs, labels, Threat("linf", size), key=KEY)
    assert torch.equal(result.inputs, inputs)


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("teleport", {}, "unknown attack"),
        ("auto-pgd", {"speed": 3}, "cannot be set up like this"),
        ("square", {"targeted": True}, "cannot be targeted"),
        ("square", {}, "refuses these inputs"),
    ],
)
def test_bad_requests(name: str, options: dict[str, Any], match: str) -> None:
    inputs, labels = batch_of(3)
    with pytest.raises(ConfigError, match=match):
        run_with_art(name, smooth_network(), inputs, labels, Threat("linf", 0.1), key=KEY, **options)


def test_inputs_are_checked_like_ours() -> None:
    inputs, labels = batch_of(3)
    with pytest.raises(DataError, match="outside their range"):
        run_with_art("auto-pgd", smooth_network(), inputs + 1, labels, Threat("linf", 0.1), key=KEY)


@pytest.mark.parametrize("absent", ["art", "multiprocess"])
def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, absent: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else found(name))
    inputs, labels = batch_of(3)
    with pytest.raises(MissingExtra, match=r"twinproof\[attacks\]"):
        run_with_art("auto-pgd", smooth_network(), inputs, labels, Threat("linf", 0.1), key=KEY)
