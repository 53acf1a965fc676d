"""The private linear classifier: the minimum of the noisy objective, exact ridge without noise, useful with it."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from functional_release import new_ledger
from sklearn.datasets import load_digits
from torch import Tensor

from twinproof.errors import ConfigError
from twinproof.keys import Key
from twinproof.privacy.functional import (
    FeatureBall,
    FunctionalPlan,
    PrivateLinear,
    PrivateSums,
    default_ridge,
    fit_private_linear,
    minimiser,
)
from twinproof.privacy.linear_maps import Norm

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
    ledger = new_ledger(folder, f"ledger-{seed}-{epsilon}")
    key = Key.from_seed(seed)
    return fit_private_linear(
        features[:TRAINING], labels[:TRAINING], 10, epsilon, ball=BALL, ledger=ledger, key=key, ridge=ridge
    )


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


@pytest.mark.parametrize("ridge", [0.0, -1.0, math.nan])
def test_a_ridge_without_a_minimum_is_refused_before_anything_is_spent(tmp_path: Path, ridge: float) -> None:
    ledger = new_ledger(tmp_path)
    features, labels = digits()
    with pytest.raises(ConfigError, match="ridge cannot be used"):
        fit_private_linear(features, labels, 10, 1.0, ball=BALL, ledger=ledger, ridge=ridge)
    assert len(ledger.entries) == 1
