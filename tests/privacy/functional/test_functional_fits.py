"""What is made of the functional mechanism: the noisy reconstruction objective, and a private linear classifier."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from functional_release import new_ledger, without_noise
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor

from twinproof.errors import ConfigError, DataError
from twinproof.keys import Key
from twinproof.privacy.accounting import LaplaceEvent
from twinproof.privacy.discrete_laplace import GridLaplace
from twinproof.privacy.functional import (
    LEVELS,
    FeatureBall,
    FunctionalPlan,
    PrivateLinear,
    PrivateSums,
    default_ridge,
    fit_private_linear,
    minimiser,
    reconstruction_polynomial,
)
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.linear_maps import Norm
from twinproof.privacy.reconstruction import ReconstructionPlan, release_reconstruction

INPUTS, HIDDEN = 4, 6
KEY = Key.from_seed(2)
PLANS = [
    ReconstructionPlan(INPUTS, FeatureBall(norm, 1.0, HIDDEN), 0.5, low, 1.0)
    for norm, low in ((Norm.LINF, 0.0), (Norm.LINF, -1.0), (Norm.L2, 0.0))
]


def records(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    inputs = torch.rand(count, INPUTS, dtype=torch.float64, generator=generator) * 4 - 2
    inputs[0], hidden = -5.0, torch.randn(count, HIDDEN, dtype=torch.float64, generator=generator) * 2
    hidden[0] = 9.0
    return inputs, hidden


def whole(plan: ReconstructionPlan, inputs: Tensor, hidden: Tensor, ledger: Ledger) -> NDArray[np.int64]:
    linear = release_reconstruction(inputs, hidden, plan, key=KEY, ledger=ledger).linear
    return np.rint(linear.numpy() * LEVELS / plan.hidden.unit).astype(np.int64)


def loss(plan: ReconstructionPlan, folder: Path) -> Fraction:
    inputs, hidden = records(8)
    ledger = new_ledger(folder)
    moved = whole(plan, inputs, hidden, ledger) - whole(plan, inputs[1:], hidden[1:], ledger)
    return Fraction(int(np.abs(moved).sum()), plan.coefficients.scale)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.hidden.norm}-{plan.low}")
def test_neighbours_lose_at_most_epsilon(plan: ReconstructionPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    assert Fraction(99, 100) * Fraction(plan.epsilon) < loss(plan, tmp_path) <= Fraction(plan.epsilon)
    if plan is PLANS[1]:  # the published sensitivity, d (beta + 2), loses more
        published = GridLaplace(INPUTS * (HIDDEN + 2) * LEVELS**2, 1, 1 / 0.5)
        monkeypatch.setattr(ReconstructionPlan, "coefficients", property(lambda plan: published))
        (tmp_path / "published").mkdir()
        assert loss(plan, tmp_path / "published") > Fraction(plan.epsilon)


def test_coefficients_are_those_of_the_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    plan = PLANS[0]
    for value in (math.nan, math.inf, -math.inf, 1e300):  # stays within the bounds
        broken = torch.full((1, INPUTS), value, dtype=torch.float64), torch.ones(1, HIDDEN)
        found = whole(plan, *broken, new_ledger(tmp_path, str(value)))
        assert int(np.abs(found).sum()) <= plan.coefficients.sensitivity
    inputs, hidden = records(20)
    inputs = (inputs.clamp(0, 1) * LEVELS).trunc() / LEVELS
    told = release_reconstruction(inputs, hidden, plan, key=KEY, ledger=new_ledger(tmp_path)).linear
    assert torch.allclose(told, reconstruction_polynomial(inputs, plan.hidden.clip(hidden)).linear)


def test_noise_is_planned_and_in_the_ledger(tmp_path: Path) -> None:
    plan = ReconstructionPlan(60, FeatureBall(Norm.LINF, 1.0, 100), 2.0)
    ledger = new_ledger(tmp_path)
    rows = [release_reconstruction(torch.zeros(0, 60), torch.zeros(0, 100), plan, key=KEY, ledger=ledger) for _ in range(30)]
    noise = np.array([row.linear.numpy() for row in rows]) * LEVELS / plan.hidden.unit / plan.coefficients.scale
    assert abs(np.mean(noise**2) / 2 - 1) < 6 * math.sqrt(5 / noise.size)
    assert ledger.events() == [LaplaceEvent(0.5)] * 30
    assert plan.event == LaplaceEvent(0.5)


def test_what_does_not_fit_is_refused_and_nothing_spent(tmp_path: Path) -> None:
    ledger = new_ledger(tmp_path)
    with pytest.raises(DataError, match="do not fit the plan"):
        release_reconstruction(torch.zeros(3, INPUTS), torch.zeros(2, HIDDEN), PLANS[0], key=KEY, ledger=ledger)
    many = torch.zeros(1, 1).expand(2**24 + 1, 1)
    with pytest.raises(DataError, match="too many records"):
        release_reconstruction(many, many, ReconstructionPlan(1, FeatureBall(Norm.L1, 1.0, 1), 1.0), key=KEY, ledger=ledger)
    assert len(ledger.entries) == 1
    for wrong in ((0, 1.0, 0.0), (3, 1.0, 2.0), (3, -1.0, 0.0), (3, 1.0, -100.0)):
        with pytest.raises(ConfigError, match=r"no usable bounds|epsilon"):
            ReconstructionPlan(wrong[0], FeatureBall(Norm.L1, 1.0, 1), wrong[1], wrong[2])


TRAINING = 1400
BALL = FeatureBall(Norm.L1, 1.0, 64)


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Images less a public grey, each divided by its own l1 norm: functions of one record."""
    images, labels = load_digits(return_X_y=True)
    centred = torch.from_numpy(images) / 16 - 0.3
    return centred / centred.abs().sum(1, keepdim=True), torch.from_numpy(labels)


def fitted(folder: Path, epsilon: float, seed: int, ridge: float | None = None) -> PrivateLinear:
    features, labels = digits()
    some, own = (features[:TRAINING], labels[:TRAINING]), new_ledger(folder, f"ledger-{seed}-{epsilon}")
    return fit_private_linear(*some, 10, epsilon, ball=BALL, ledger=own, key=Key.from_seed(seed), ridge=ridge)


def accuracy(model: PrivateLinear) -> float:
    features, labels = digits()
    return float((model.scores(features[TRAINING:]).argmax(1) == labels[TRAINING:]).double().mean())


def exact_ridge(ridge: float) -> Tensor:
    """Least squares towards +2 and -2, solved by numpy: what the second-order objective is, completed to squares."""
    features, labels = digits()
    inputs = features[:TRAINING].numpy()
    targets = np.where(labels[:TRAINING].numpy()[:, None] == np.arange(10), 2.0, -2.0)
    curvature = inputs.T @ inputs / 4 + ridge * np.eye(64)
    return torch.from_numpy(np.linalg.solve(curvature, inputs.T @ targets / 4).T)


def test_with_hardly_any_noise_it_is_exact_ridge(tmp_path: Path) -> None:
    model, wanted = fitted(tmp_path, 1e7, seed=1, ridge=0.05), exact_ridge(0.05)
    assert float((model.weights - wanted).norm() / wanted.norm()) < 0.02
    features, labels = digits()
    exact = float(((features[TRAINING:] @ wanted.T).argmax(1) == labels[TRAINING:]).double().mean())
    assert abs(accuracy(model) - exact) <= 0.01
    assert exact > 0.8
    assert float((model.weights - exact_ridge(0.1)).norm() / wanted.norm()) > 0.05, "able to fail: another ridge is seen"


def test_it_is_useful_at_a_small_epsilon(tmp_path: Path) -> None:
    """1,400 records, ten classes, pure epsilon 4: far above chance, for every seed; and less noise helps."""
    found = [accuracy(fitted(tmp_path, 4.0, seed)) for seed in range(5)]
    assert min(found) > 0.7
    assert np.mean(found) < np.mean([accuracy(fitted(tmp_path, 400.0, seed)) for seed in range(3)])


def test_the_answer_is_the_minimum_of_the_noisy_objective(tmp_path: Path) -> None:
    """Where noise makes it curve downwards those directions count as flat; then the gradient is zero."""
    generator = torch.Generator().manual_seed(7)
    noise = torch.randn(6, 6, dtype=torch.float64, generator=generator)
    sums = PrivateSums(torch.randn(3, 6, dtype=torch.float64, generator=generator), noise + noise.T)
    weights = minimiser(sums, 0.4)
    values, vectors = torch.linalg.eigh(sums.products)
    assert values.min() < -1, "there are such directions"
    held = (vectors * values.clamp(min=0)) @ vectors.T

    def objective(point: Tensor) -> Tensor:
        linear = sums.by_class.sum(0) / 2 - sums.by_class
        value: Tensor = (linear * point).sum() + ((point @ held) * point).sum() / 8 + 0.2 * point.square().sum()
        return value

    assert torch.func.jacrev(objective)(weights).abs().max() < 1e-9
    planted = torch.linalg.solve(sums.products / 4 + 0.4 * torch.eye(6), -(sums.by_class.sum(0) / 2 - sums.by_class).T).T
    assert objective(planted) > objective(weights) + 0.1, "without the repair it is no minimum"


def test_the_default_ridge_holds_the_noise() -> None:
    """Public, falling with epsilon, and of the size of the noise's largest eigenvalue."""
    plans = [FunctionalPlan(BALL, 10, epsilon) for epsilon in (0.5, 5.0, 1e9)]
    ridges = [default_ridge(plan) for plan in plans]
    assert ridges[0] == pytest.approx(10 * ridges[1], rel=1e-3)
    assert ridges[2] == 1e-3
    deviation = math.sqrt(2) * plans[0].products.scale * BALL.unit**2
    assert ridges[0] == pytest.approx(2 * math.sqrt(64) * deviation / 4, rel=1e-6)


def test_fresh_noise_unless_a_key_is_given(tmp_path: Path) -> None:
    features, labels = digits()
    models = [
        fit_private_linear(features[:50], labels[:50], 10, 1.0, ball=BALL, ledger=new_ledger(tmp_path, str(at)))
        for at in range(2)
    ]
    assert not torch.allclose(models[0].weights, models[1].weights)
    (tmp_path / "again").mkdir()
    assert torch.equal(fitted(tmp_path, 2.0, seed=3).weights, fitted(tmp_path / "again", 2.0, seed=3).weights)
    ledger = new_ledger(tmp_path)
    for ridge in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="ridge cannot be used"):
            fit_private_linear(features, labels, 10, 1.0, ball=BALL, ledger=ledger, ridge=ridge)
    assert len(ledger.entries) == 1, "refused before anything is spent"
