"""The terms of DP-CERT's recipes against slow straightforward ones, MACER's threshold, their settings, and runs by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipe_fixtures import on_one_thread as on_one_thread
from recipe_fixtures import resolved
from recipe_fixtures import source as source
from scipy.stats import norm
from small_runs import model_bytes, tiny
from torch import Tensor

from twinproof.auditing.verify import verify_run
from twinproof.data.load import load
from twinproof.data.record import DataConfig
from twinproof.guarantee import Status
from twinproof.layers.networks import build_network
from twinproof.privacy.plan import ClipRule
from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.dpcert import consistency, macer_hinge, stability
from twinproof.recipes.registry import RECIPES
from twinproof.recipes.resolve import plan_of
from twinproof.recipes.train import train
from twinproof.training.passes import GaussianCopies

CLASSES, COPIES = 5, 4


def _logits(count: int, spread: float, seed: int = 0) -> Tensor:
    return spread * torch.randn(count, COPIES, CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _shares(logits: Tensor, beta: float = 1.0) -> list[list[float]]:
    shares = []
    for row in logits.tolist():
        weights = [math.exp(beta * (value - max(row))) for value in row]
        shares.append([weight / sum(weights) for weight in weights])
    return shares


def _divergence(left: list[float], right: list[float]) -> float:
    return sum(p * math.log(p / q) for p, q in zip(left, right, strict=True) if p > 0)


def _cross_entropy(logits: Tensor, label: int) -> float:
    return -sum(math.log(row[label]) for row in _shares(logits)) / len(logits)


def slow_stability(logits: Tensor) -> float:
    first, *others = _shares(logits)
    return sum(_divergence(first, other) for other in others) / len(others)


def slow_consistency(noisy: Tensor, weight: float, eta: float) -> float:
    shares = _shares(noisy)
    average = [sum(row[k] for row in shares) / len(shares) for k in range(CLASSES)]
    entropy = -sum(p * math.log(p) for p in average)
    return weight * sum(_divergence(average, row) for row in shares) / len(shares) + eta * entropy


def slow_macer(logits: Tensor, label: int, beta: float, gamma: float) -> float:
    shares = _shares(logits, beta)
    average = [sum(row[k] for row in shares) / len(shares) for k in range(CLASSES)]
    best, second = sorted(average, reverse=True)[:2]
    if average.index(best) != label:
        return 0.0
    margin = float(norm.ppf(best) - norm.ppf(second))
    return gamma - margin if math.isfinite(margin) and margin <= gamma else 0.0


@pytest.mark.parametrize("spread", [0.1, 2.0, 20.0])
def test_stability_and_consistency_are_their_formulas(spread: float) -> None:
    for one in _logits(20, spread):
        assert float(stability(one)) == pytest.approx(slow_stability(one), rel=1e-9, abs=1e-12)
        for weight, eta in ((0.5, 0.5), (10.0, 0.0), (0.0, 2.0)):
            found = float(consistency(one[1:], weight, eta))
            assert found == pytest.approx(slow_consistency(one[1:], weight, eta), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("gamma", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("spread", [0.01, 0.1, 1.0])
def test_macer_is_its_formula(gamma: float, spread: float) -> None:
    for number, one in enumerate(_logits(60, spread)):
        label = number % CLASSES
        found = float(macer_hinge(one, torch.tensor(label), 16.0, gamma))
        assert found == pytest.approx(slow_macer(one, label, 16.0, gamma), rel=1e-7, abs=1e-9)


def test_planted_macer_without_the_label_is_caught() -> None:
    """A hinge that also counts records classified wrongly would differ from the slow one."""
    ones = _logits(60, 0.1)
    blind = [slow_macer(one, int(torch.tensor(_shares(one, 16.0)).mean(0).argmax()), 16.0, 8.0) for one in ones]
    found = [float(macer_hinge(one, torch.tensor(0), 16.0, 8.0)) for one in ones]
    assert any(abs(one - other) > 0.1 for one, other in zip(blind, found, strict=True))


@pytest.fixture(scope="module")
def predictions() -> tuple[Tensor, Tensor]:
    """What a network that was trained under noise says of all digits and two noisy copies of each: outputs and labels."""
    data = load(DataConfig(source="digits"))
    inputs = torch.from_numpy(data.train.inputs.astype(np.float32)) / data.levels
    labels = torch.from_numpy(data.train.labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = build_network("mlp", data.shape, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        for _ in range(120):
            rows = torch.randint(0, len(inputs), (64,))
            optimizer.zero_grad()
            noisy = inputs[rows] + 0.25 * torch.randn_like(inputs[rows])
            torch.nn.functional.cross_entropy(model(noisy), labels[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    copies = GaussianCopies(2, 0.25)(inputs, torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(copies.flatten(0, 1)).view(len(inputs), 3, 10), labels


def test_macer_counts_next_to_nothing_with_the_programs_gamma(predictions: tuple[Tensor, Tensor]) -> None:
    """And what counts adds next to nothing: the term's mean is a thousandth of what it is with the original system's 8."""
    hinges = {
        gamma: torch.func.vmap(lambda one, label, gamma=gamma: macer_hinge(one, label, 16.0, gamma))(*predictions)
        for gamma in (0.1, 8.0)
    }
    counted = {gamma: float((hinge > 0).double().mean()) for gamma, hinge in hinges.items()}
    assert counted[0.1] < 0.01 < 0.1 < counted[8.0]
    assert float(hinges[0.1].mean()) < 1e-3 * float(hinges[8.0].mean())


def test_no_gradient_is_lost_where_a_prediction_is_sure() -> None:
    """Shares of exactly 1 and 0 have infinite quantiles: the record does not count, and its gradient is zero, not NaN."""
    logits = torch.zeros(3, 10)
    logits[:, 4] = 50.0
    for label in (4, 1):
        given = logits.clone().requires_grad_()
        value = macer_hinge(given, torch.tensor(label), 16.0, 8.0)
        assert float(value.detach()) == 0
        assert torch.equal(torch.autograd.grad(value, given)[0], torch.zeros(3, 10))
    for term in (stability, lambda one: consistency(one[1:], 0.5, 0.5)):
        given = (logits * 20).requires_grad_()
        assert bool(torch.isfinite(torch.autograd.grad(term(given), given)[0]).all())


def _resolved(source: Path, recipe: str, **changes: Any) -> ResolvedConfig:
    return resolved(tiny(source, recipe=recipe, **changes))[0]


def test_a_recipes_loss_is_cross_entropy_and_its_weighted_term(source: Path) -> None:
    one = _logits(1, 0.3)[0]
    label = int(one.mul(2).softmax(dim=1).mean(dim=0).argmax())  # right, so that MACER counts it
    base = _cross_entropy(one, label)
    cases = {
        "dpcert-smoothadv": ({"weight": 3.0, "eta": 0.2}, slow_consistency(one[1:], 3.0, 0.2)),
        "dpcert-stability": ({"weight": 0.7}, 0.7 * slow_stability(one)),
        "dpcert-consistency": ({"weight": 3.0, "eta": 0.2}, slow_consistency(one[1:], 3.0, 0.2)),
        "twinproof": ({"weight": 3.0, "eta": 0.2}, slow_consistency(one[1:], 3.0, 0.2)),
        "dpcert-macer": ({"weight": 12.0, "beta": 2.0}, 12.0 * 0.5 / 2 * slow_macer(one, label, 2.0, 8.0)),
    }
    for recipe, (regulariser, term) in cases.items():
        config = _resolved(source, recipe, sigma=0.5, regulariser=regulariser)
        found = float(RECIPES[recipe].record_loss(config)(one, torch.tensor(label)))
        assert found == pytest.approx(base + term, rel=1e-9), recipe
        assert term != 0
    for recipe in ("dpcert-smoothadv", "twinproof"):  # their terms are off unless asked for
        plain = RECIPES[recipe].record_loss(_resolved(source, recipe, sigma=0.5))
        assert float(plain(one, torch.tensor(label))) == pytest.approx(base, rel=1e-9)


def test_without_originals_every_row_is_a_noisy_one(source: Path) -> None:
    one = _logits(1, 0.3)[0]
    for recipe in ("dpcert-consistency", "dpcert-smoothadv", "twinproof"):
        both = {"weight": 0.5, "eta": 0.5}
        config = _resolved(source, recipe, originals=False, copies=COPIES, regulariser=both)
        found = float(RECIPES[recipe].record_loss(config)(one, torch.tensor(1)))
        assert found == pytest.approx(_cross_entropy(one, 1) + slow_consistency(one, 0.5, 0.5), rel=1e-9)


def test_smoothadv_with_consistency_is_another_proven_training(source: Path, tmp_path: Path) -> None:
    both = {"weight": 0.5, "eta": 0.5}
    run = train(tiny(source, recipe="dpcert-smoothadv", seed=None, regulariser=both), tmp_path / "run")
    assert run.guarantee.status is Status.PROVEN
    assert verify_run(run.root).ok
    weights = {
        name: model_bytes(train(tiny(source, recipe=recipe, regulariser=given), tmp_path / name).root)
        for name, recipe, given in (
            ("alone", "dpcert-smoothadv", {}),
            ("with", "dpcert-smoothadv", both),
            ("not moved", "dpcert-consistency", both),
        )
    }
    assert len(set(weights.values())) == 3, "neither the movement nor the term is lost"


def test_the_plan_clips_as_the_settings_say(source: Path) -> None:
    plain, psac = _resolved(source, "dpcert-gaussian"), _resolved(source, "dpcert-gaussian", clip_rule="psac-code", clip_r=0.2)
    assert (plan_of(plain).clip_rule, plan_of(psac).clip_rule) == (ClipRule.FLAT, ClipRule.PSAC_CODE)
    assert plan_of(psac).clip_r == 0.2
    assert plan_of(_resolved(source, "psac")).clip_rule is ClipRule.PSAC_PAPER
