"""The four methods as settings, settings that make no sense, and the loop: what is kept, and recorded steps."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attack_problems import KEY, batch_of, smooth_network

from twinproof.attacks import run, search
from twinproof.attacks.objective import Objective, Plain, Smoothed
from twinproof.attacks.run import run_attack
from twinproof.attacks.search import METHODS, Attack, Best, Keep, Look, attack_named, fgsm, ifgsm, mim, pgd
from twinproof.attacks.threat import Threat
from twinproof.compute.devices import Captured
from twinproof.errors import ConfigError


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("kind", ["plain", "fresh", "shared"])
def test_recorded_steps_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, norm: str, kind: str) -> None:
    model = smooth_network().to("cuda")
    target: Objective = Plain(model) if kind == "plain" else Smoothed(model, 0.2, 4, shared=kind == "shared")
    inputs, labels = batch_of(64)
    made: list[Captured] = []

    class Watched(Captured):
        def __init__(self, *given: object) -> None:
            super().__init__(*given)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(search, "Captured", Watched)
    attack = pgd(30, restarts=2)
    recorded = run_attack(attack, target, inputs, labels, Threat(norm, 0.3), key=KEY)
    assert [one.is_recorded for one in made] == [True]
    monkeypatch.setattr(search, "_WORTH_RECORDING", 10**9)
    plain = run_attack(attack, target, inputs, labels, Threat(norm, 0.3), key=KEY)
    assert torch.equal(recorded.inputs, plain.inputs)


def test_a_recorder_changes_nothing_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It calls the step, which lives on tensors that stay where they are."""
    inputs, labels = batch_of(5)
    expected = run_attack(mim(50), smooth_network(), inputs, labels, Threat("l2", 0.3), key=KEY)
    monkeypatch.setattr(run, "may_capture", lambda model, device: True)
    got = run_attack(mim(50), smooth_network(), inputs, labels, Threat("l2", 0.3), key=KEY)
    assert torch.equal(got.inputs, expected.inputs)


@pytest.mark.parametrize(
    ("losses", "predictions", "kept"),
    [
        pytest.param([1.5, 2.0], [0, 0], 2, id="the higher loss"),
        pytest.param([2.0, 1.5], [0, 0], 1, id="not the later one"),
        pytest.param([2.0, 1.5], [0, 1], 2, id="success before loss"),
        pytest.param([1.5, 2.0], [1, 0], 1, id="not a higher loss that is classified right"),
        pytest.param([2.0, 0.5], [0, 1], 1, id="never below the start"),
        pytest.param([float("nan"), 1.5], [1, 0], 2, id="no NaN"),
        pytest.param([0.5, float("nan")], [1, 1], 0, id="else the original"),
    ],
)
def test_what_is_kept(losses: list[float], predictions: list[int], kept: int) -> None:
    """Of the original (number 0, loss 1, classified right as class 0) and two candidates."""
    original = torch.zeros(1, 2)
    best = Best(original, Look(torch.tensor([1.0]), torch.tensor([0])), torch.tensor([0]), targeted=False)
    for number, (loss, prediction) in enumerate(zip(losses, predictions, strict=True), start=1):
        best.offer(torch.full((1, 2), float(number)), Look(torch.tensor([loss]), torch.tensor([prediction])))
    assert best.points.tolist() == [[kept, kept]]
    assert best.losses.tolist() == [[1.0, *losses][kept]]
    assert best.predictions.tolist() == [[0, *predictions][kept]]


@pytest.mark.parametrize(
    ("attack", "steps", "length", "momentum", "random_start"),
    [
        (fgsm(), 1, 0.3, None, False),
        (ifgsm(10), 10, 0.03, None, False),
        (ifgsm(10, step_size=0.01), 10, 0.01, None, False),
        (mim(5), 5, 0.06, 1.0, False),
        (mim(5, decay=0.9), 5, 0.06, 0.9, False),
        (pgd(50, restarts=3), 50, 0.015, None, True),
    ],
    ids=str,
)
def test_presets(attack: Attack, steps: int, length: float, momentum: float | None, random_start: bool) -> None:
    assert (attack.steps, attack.momentum, attack.random_start) == (steps, momentum, random_start)
    assert attack.step_length(Threat("linf", 0.3)) == pytest.approx(length)


def test_names_give_the_presets() -> None:
    assert attack_named("pgd", steps=7, restarts=2) == pgd(7, restarts=2)
    assert set(METHODS) == {"fgsm", "ifgsm", "mim", "pgd"}
    assert "steps=7" in repr(attack_named("ifgsm", steps=7))


@pytest.mark.parametrize(("name", "options", "match"), [("cw", {}, "unknown attack"), ("fgsm", {"steps": 3}, "no such option")])
def test_unknown_methods_and_options(name: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        attack_named(name, **options)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"steps": 0}, "steps cannot be used"),
        ({"restarts": 0}, "restarts cannot be used"),
        ({"step_size": 0.0}, "cannot be used"),
        ({"relative_step": math.nan}, "cannot be used"),
        ({"momentum": 1.5}, "momentum cannot"),
        ({"spread": -0.1}, "spread cannot"),
        ({"keep": "first"}, "keep cannot"),
        ({"restarts": 2}, "restarts would be wasted"),
        ({"restarts": 2, "random_start": True, "keep": Keep.LAST}, "restarts would be wasted"),
    ],
)
def test_bad_settings(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Attack(**settings)


def test_a_row_without_gradient_stays_whatever_its_momentum() -> None:
    points, gathered = torch.full((2, 3), 0.5), torch.ones(2, 3)
    gradient = torch.tensor([[1.0, 0.0, -1.0], [0.0, 0.0, 0.0]])
    moved = mim(10).propose(points, gradient, gathered, Threat("linf", 0.1))
    assert torch.equal(moved[1], points[1])
    assert not torch.equal(moved[0], points[0])
