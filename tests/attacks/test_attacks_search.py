"""The loop on a GPU: recorded steps are the same steps."""

from __future__ import annotations

import pytest
import torch
from attack_problems import KEY, batch_of, smooth_network

from twinproof.attacks import run, search
from twinproof.attacks.objective import Objective, Plain, Smoothed
from twinproof.attacks.run import run_attack
from twinproof.attacks.search import Best, Look, mim, pgd
from twinproof.attacks.threat import Threat
from twinproof.compute.devices import Captured


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
