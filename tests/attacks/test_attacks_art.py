"""Agreement with an independent library step for step, and at least its strength."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from art.attacks.evasion import BasicIterativeMethod, FastGradientMethod, MomentumIterativeMethod
from art.attacks.evasion.projected_gradient_descent.projected_gradient_descent_pytorch import ProjectedGradientDescentPyTorch
from attack_problems import (
    CLASSES,
    KEY,
    ORDERS,
    art_classifier,
    batch_of,
    digits,
    digits_network,
    smooth_network,
)
from torch import Tensor, nn

from twinproof.attacks.run import run_attack
from twinproof.attacks.search import Attack, Keep, fgsm, ifgsm, mim, pgd
from twinproof.attacks.threat import Threat

STEPS = 10


def theirs(name: str, classifier: Any, threat: Threat, step: float, steps: int = STEPS, *, targeted: bool = False) -> Any:
    norm, size = ORDERS[threat.norm], threat.size
    rest = {"eps_step": step, "max_iter": steps, "verbose": False, "targeted": targeted, "batch_size": 256}
    if name == "fgsm":
        return FastGradientMethod(classifier, norm=norm, eps=size, targeted=targeted)
    if name == "ifgsm" and threat.norm == "linf":
        return BasicIterativeMethod(classifier, eps=size, **rest)
    if name == "mim":
        return MomentumIterativeMethod(classifier, norm=norm, eps=size, **rest)
    return ProjectedGradientDescentPyTorch(classifier, norm=norm, eps=size, num_random_init=0, **rest)


OURS: dict[str, Attack] = {
    "fgsm": fgsm(keep=Keep.LAST),
    "ifgsm": ifgsm(STEPS, keep=Keep.LAST),
    "mim": mim(STEPS, keep=Keep.LAST),
    "pgd": pgd(STEPS, random_start=False, keep=Keep.LAST),
}
# linf and l2 over the whole range, where clipping and projecting bite at every step. In l1 the rules differ by intent: ART
# scales back into the ball, and spends steps on coordinates that the range blocks. They are the same as long as neither the
# ball nor the range is reached, which is what is compared: small steps from the middle, along the largest coordinate alone.
CASES = [(norm, size, 0.0, 1.0) for norm, size in (("linf", 0.2), ("l2", 0.6), ("linf", 0.02), ("l2", 3.0))]
CASES += [("l1", 0.3, 0.45, 0.55)]


@pytest.mark.parametrize("targeted", [False, True])
@pytest.mark.parametrize("name", sorted(OURS))
@pytest.mark.parametrize(("norm", "size", "low", "high"), CASES)
def test_agrees_with_art(norm: str, size: float, low: float, high: float, name: str, targeted: bool) -> None:
    model, (inputs, labels) = smooth_network(), batch_of(30, low=low, high=high)
    attack = replace(OURS[name], spread=0.0)
    if norm == "l1" and name == "pgd":
        attack = replace(attack, relative_step=1 / STEPS)
    threat = Threat(norm, size)
    other = theirs(name, art_classifier(model, inputs, CLASSES, threat), threat, attack.step_length(threat), targeted=targeted)
    expected = other.generate(inputs.numpy().copy(), labels.numpy())
    got = run_attack(attack, model, inputs, labels, threat, targeted=targeted, key=KEY).inputs
    np.testing.assert_allclose(got.numpy(), expected, rtol=0, atol=1e-5)
    assert np.abs(expected - inputs.numpy()).max() > size / 20


def test_the_comparison_sees_a_wrong_step() -> None:
    """Planted: steps one percent too long."""
    model, (inputs, labels) = smooth_network(), batch_of(30)
    threat = Threat("l2", 0.6)
    other = theirs("ifgsm", art_classifier(model, inputs, CLASSES, threat), threat, 0.06).generate(
        inputs.numpy().copy(), labels.numpy()
    )
    wrong = run_attack(replace(OURS["ifgsm"], step_size=0.0606), model, inputs, labels, threat, key=KEY).inputs
    assert np.abs(wrong.numpy() - other).max() > 1e-4


def fooled(model: nn.Module, inputs: Tensor, labels: Tensor) -> int:
    with torch.no_grad():
        return int((model(inputs).argmax(dim=1) != labels).sum())


def strengths(model: nn.Module, inputs: Tensor, labels: Tensor, threat: Threat, name: str, steps: int) -> tuple[int, int]:
    """Inputs fooled by us and by ART, with the same method, steps and step length; classes are ten."""
    attack = {"fgsm": fgsm(), "ifgsm": ifgsm(steps), "mim": mim(steps), "pgd": pgd(steps, random_start=False)}[name]
    classifier = art_classifier(model, inputs, 10, threat)
    other = theirs(name, classifier, threat, attack.step_length(threat), steps).generate(inputs.numpy().copy(), labels.numpy())
    ours = run_attack(attack, model, inputs, labels, threat, key=KEY)
    assert int(ours.success.sum()) == fooled(model, ours.inputs, labels)
    return int(ours.success.sum()), fooled(model, torch.tensor(other), labels)


@pytest.mark.parametrize("name", ["fgsm", "ifgsm", "mim", "pgd"])
@pytest.mark.parametrize(("norm", "size"), [("linf", 0.1), ("l2", 0.5), ("l1", 2.0)])
def test_at_least_as_strong_as_art_on_digits(norm: str, size: float, name: str) -> None:
    _, _, inputs, labels = digits()
    ours, art = strengths(digits_network(), inputs[:400], labels[:400], Threat(norm, size), name, 20)
    assert ours >= art
    assert art > fooled(digits_network(), inputs[:400], labels[:400]) + 20


@pytest.mark.slow
@pytest.mark.skipif("TWINPROOF_DATA" not in os.environ, reason="TWINPROOF_DATA does not say where MNIST is")
@pytest.mark.parametrize(("norm", "size"), [("linf", 0.1), ("l2", 1.5), ("l1", 10.0)])
def test_at_least_as_strong_as_art_on_mnist(norm: str, size: float) -> None:
    """1,000 test images and a convolutional network trained for an epoch."""
    model, inputs, labels = mnist_network()
    counts = {name: strengths(model, inputs, labels, Threat(norm, size), name, 20) for name in ("fgsm", "ifgsm", "mim", "pgd")}
    assert all(ours >= art for ours, art in counts.values()), counts


def mnist_network() -> tuple[nn.Module, Tensor, Tensor]:
    from twinproof.data.load import load

    if not (Path(os.environ["TWINPROOF_DATA"]) / "mnist").is_dir():
        pytest.skip("TWINPROOF_DATA holds no MNIST")
    dataset = load("mnist")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for first in range(0, 20_000, 100):
        rows = slice(first, first + 100)
        inputs = torch.tensor(dataset.train.inputs[rows] / np.float32(255))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), torch.tensor(dataset.train.labels[rows])).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    optimizer.zero_grad()
    return model.eval(), torch.tensor(dataset.test.inputs[:1000] / np.float32(255)), torch.tensor(dataset.test.labels[:1000])
