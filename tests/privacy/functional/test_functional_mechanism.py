"""The functional mechanism: exact loss between neighbours, noise on everything, ledger first, and what is fitted."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from private_path import new_ledger
from sklearn.datasets import load_digits
from torch import Tensor

from twinproof.errors import ConfigError, DataError
from twinproof.keys import Key
from twinproof.privacy import discrete_laplace as grid_laplace
from twinproof.privacy import functional as mechanism
from twinproof.privacy.accounting import LaplaceEvent, epsilon_pld
from twinproof.privacy.discrete_laplace import GridLaplace
from twinproof.privacy.functional import (
    CLASS_SUMS,
    LEVELS,
    PRODUCTS,
    FeatureBall,
    FunctionalPlan,
    PrivateLinear,
    PrivateSums,
    ReconstructionPlan,
    default_ridge,
    fit_private_linear,
    minimiser,
    output_polynomial,
    reconstruction_polynomial,
    release_reconstruction,
    release_sums,
)
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.linear_maps import Norm

FEATURES, CLASSES = 5, 3
KEY = Key.from_seed(9)
PLANS = [FunctionalPlan(FeatureBall(norm, 1.5, FEATURES), CLASSES, epsilon) for norm in Norm for epsilon in (0.3, 7.0)]
Whole = NDArray[np.int64]


def some_records(count: int, features: int, classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random features, some outside any ball, and labels."""
    generator = torch.Generator().manual_seed(seed)
    features_ = torch.randn(count, features, dtype=torch.float64, generator=generator)
    return features_ * 3, torch.randint(classes, (count,), generator=generator)


def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases then hold the sums themselves."""

    def zeros(*names: object, scale: int, count: int) -> NDArray[np.int64]:
        return np.zeros(count, dtype=np.int64)

    monkeypatch.setattr(grid_laplace, "discrete_laplace", zeros)


@pytest.fixture
def ledgers(tmp_path: Path) -> Callable[[], Ledger]:
    names = count()
    return lambda: new_ledger(tmp_path, f"ledger-{next(names)}")


def whole_sums(plan: FunctionalPlan, features: Tensor, labels: Tensor, ledger: Ledger) -> tuple[Whole, Whole]:
    """Class sums and products in levels; to be used where noise is switched off."""
    sums = release_sums(features, labels, plan, key=KEY, ledger=ledger)
    upper = np.triu_indices(plan.ball.features)
    by_class, products = sums.by_class.numpy() / plan.ball.unit, sums.products.numpy()[upper] / plan.ball.unit**2
    return np.rint(by_class).astype(np.int64), np.rint(products).astype(np.int64)


def losses(plan: FunctionalPlan, ledgers: Callable[[], Ledger], pairs: int = 9) -> list[Fraction]:
    """The largest privacy loss of the mechanism between neighbours, exactly: |moved| / scale, added up over both tables."""
    found = []
    for seed in range(pairs):
        features, labels = some_records(6, FEATURES, CLASSES, seed)
        features[5] = [features[5] * 100, torch.full((FEATURES,), 1e3), torch.eye(FEATURES)[seed % FEATURES] * -1e3][seed % 3]
        with_it = whole_sums(plan, features, labels, ledgers())
        without = whole_sums(plan, features[:5], labels[:5], ledgers())
        moved = [int(np.abs(one - other).sum()) for one, other in zip(with_it, without, strict=True)]
        found.append(Fraction(moved[0], plan.class_sums.scale) + Fraction(moved[1], plan.products.scale))
    return found


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.ball.norm}-{plan.epsilon}")
def test_neighbours_lose_at_most_epsilon(
    plan: FunctionalPlan, ledgers: Callable[[], Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(monkeypatch)
    found = losses(plan, ledgers)
    assert max(found) <= Fraction(plan.epsilon)
    assert max(found) > Fraction(plan.epsilon) * Fraction(99, 100), "and the worst of them nearly all of it"


def unclipped(self: FeatureBall, features: Tensor) -> Tensor:
    return (features / self.radius * LEVELS).trunc()


PLANTED: dict[str, object] = {
    "FeatureBall.levels": unclipped,
    "FeatureBall.largest_sum": property(lambda ball: LEVELS),  # one feature in place of all
    "products_sensitivity": lambda ball: ball.largest_sum // ball.features,  # one row in place of all
    "GridLaplace.scale": property(lambda mechanism: mechanism.sensitivity),  # a sensitivity for a scale
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_lose_more_than_epsilon(name: str, ledgers: Callable[[], Ledger], monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    monkeypatch.setattr(f"twinproof.privacy.functional.{name}", PLANTED[name])
    plan = FunctionalPlan(FeatureBall(Norm.LINF, 1.5, FEATURES), CLASSES, 0.3)
    assert max(losses(plan, ledgers, pairs=6)) > Fraction(plan.epsilon)


def test_a_record_adds_the_same_to_any_data_set(ledgers: Callable[[], Ledger], monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly, whatever the others hold: more of them than are summed at once, and broken ones."""
    without_noise(monkeypatch)
    plan = FunctionalPlan(FeatureBall(Norm.L2, 1.5, FEATURES), CLASSES, 1.0)
    features, labels = some_records(9001, FEATURES, CLASSES)
    features[4] = math.nan
    alone = whole_sums(plan, features[:1], labels[:1], ledgers())
    for others in (slice(1, 3), slice(1, 9001)):
        rest = whole_sums(plan, features[others], labels[others], ledgers())
        both = torch.cat([features[:1], features[others]]), torch.cat([labels[:1], labels[others]])
        for one, other, together in zip(alone, rest, whole_sums(plan, *both, ledgers()), strict=True):
            assert (one + other == together).all()


def test_the_sums_tell_the_polynomial(ledgers: Callable[[], Ledger], monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    plan = FunctionalPlan(FeatureBall(Norm.LINF, 1.5, FEATURES), CLASSES, 1.0)
    features, labels = some_records(50, FEATURES, CLASSES)
    told = release_sums(features, labels, plan, key=KEY, ledger=ledgers()).polynomial()
    truth = output_polynomial(plan.ball.clip(features), labels, CLASSES)
    assert torch.allclose(told.monomials(), truth.monomials())


def noises(plan: FunctionalPlan, ledger: Ledger, times: int) -> NDArray[np.float64]:
    """What is released of no records at all: (times, numbers), each in units of its own scale."""
    empty = torch.zeros(0, plan.ball.features), torch.zeros(0, dtype=torch.int64)
    upper = np.triu_indices(plan.ball.features)
    rows = []
    for _ in range(times):
        sums = release_sums(*empty, plan, key=KEY, ledger=ledger)
        by_class = sums.by_class.numpy().ravel() / plan.ball.unit / plan.class_sums.scale
        rows.append(np.concatenate([by_class, sums.products.numpy()[upper] / plan.ball.unit**2 / plan.products.scale]))
    return np.array(rows)


def test_noise_has_the_planned_variance(ledgers: Callable[[], Ledger]) -> None:
    """216,000 numbers: six standard errors of the variance are 2.9 %, and a scale 3 % off is beyond them."""
    found = noises(FunctionalPlan(FeatureBall(Norm.L1, 1.0, 80), 10, 2.0), ledgers(), 54)
    for part in (found[:, :800], found[:, 800:]):
        room = 6 * math.sqrt(5 / part.size)
        assert abs(np.mean(part**2) / 2 - 1) < room
    assert 6 * math.sqrt(5 / found[:, 800:].size) < 1.03**2 - 1


def least_direction(draws: NDArray[np.float64]) -> float:
    """The smallest deviation of any combination of the released numbers: 0 is a combination that tells the data."""
    return float(np.linalg.svd(draws, compute_uv=False).min() / math.sqrt(len(draws)))


def test_every_combination_has_noise_and_planted_noise_shared_by_classes_is_seen(ledgers: Callable[[], Ledger]) -> None:
    """As published, with one draw for all classes, W_a - W_b tells neighbours apart for certain."""
    ledger = ledgers()
    own = noises(PLANS[0], ledger, 160)
    assert len(ledger.events()) == 2 * len(own)
    assert least_direction(own) > 0.5, "deviations are sqrt(2); sampling takes some of it"
    assert np.abs(np.corrcoef(own.T) - np.eye(own.shape[1])).max() < 6 / math.sqrt(len(own))
    shared = own.copy()
    shared[:, : CLASSES * FEATURES] = np.tile(own[:, :FEATURES], CLASSES)
    assert least_direction(shared) < 1e-9
    assert np.abs(shared[:, :FEATURES] - shared[:, FEATURES : 2 * FEATURES]).max() == 0
    assert np.abs(own[:, :FEATURES] - own[:, FEATURES : 2 * FEATURES]).min() > 0


def test_both_events_are_on_the_disk_before_a_record_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, ledger = PLANS[0], new_ledger(tmp_path)
    seen: list[list[str]] = []

    def reads(*_: object) -> Tensor:
        seen.append([entry.body.get("purpose", "") for entry in Ledger.load(tmp_path / "ledger.jsonl").entries])
        return torch.zeros(4, FEATURES, dtype=torch.float64)

    monkeypatch.setattr(FeatureBall, "levels", reads)
    monkeypatch.setattr(mechanism, "check_labels", reads)
    release_sums(*some_records(4, FEATURES, CLASSES), plan, key=KEY, ledger=ledger)
    assert seen == [["", CLASS_SUMS, PRODUCTS]] * 2
    assert ledger.events() == list(plan.events)


@pytest.mark.parametrize(("epsilon", "share"), [(0.1, 0.1), (1.0, 1 / 3), (3.7, 0.999)])
def test_the_events_cost_epsilon_and_not_more(epsilon: float, share: float) -> None:
    plan = FunctionalPlan(FeatureBall(Norm.L1, 1.0, 4), 2, epsilon, share)
    exact = sum((1 / Fraction(event.noise_multiplier) for event in plan.events), Fraction(0))
    assert Fraction(epsilon) * Fraction(999_999, 1_000_000) < exact <= Fraction(epsilon)
    assert epsilon_pld(plan.events, 1e-9) <= epsilon


@pytest.mark.parametrize(
    "wrong", [{"epsilon": 0.0}, {"epsilon": math.nan}, {"classes": 1}, {"label_share": 0.0}, {"label_share": 1.0}], ids=str
)
def test_plans_without_meaning_are_refused(wrong: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"ball": FeatureBall(Norm.LINF, 1.0, 50), "classes": 3, "epsilon": 1.0}
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} cannot"):
        FunctionalPlan(**settings | wrong)
    with pytest.raises(ConfigError, match="scale cannot"):
        FunctionalPlan(**settings | {"epsilon": 1e-9})


def test_records_that_do_not_fit_are_refused(ledgers: Callable[[], Ledger], monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = some_records(4, FEATURES, CLASSES)
    ledger = ledgers()
    with pytest.raises(DataError, match="do not fit the records"):
        release_sums(features, labels[:3], PLANS[0], key=KEY, ledger=ledger)
    monkeypatch.setattr(mechanism, "MOST_RECORDS", 3)
    with pytest.raises(DataError, match="too many records"):
        release_sums(features, labels, PLANS[0], key=KEY, ledger=ledger)
    assert len(ledger.entries) == 1, "nothing was spent"
    with pytest.raises(DataError, match="belongs to no class"):
        release_sums(features[:3], labels[:3] + CLASSES, PLANS[0], key=KEY, ledger=ledger)


INPUTS, HIDDEN = 4, 6
RECONSTRUCTIONS = [
    ReconstructionPlan(INPUTS, FeatureBall(norm, 1.0, HIDDEN), 0.5, low, 1.0)
    for norm, low in ((Norm.LINF, 0.0), (Norm.LINF, -1.0), (Norm.L2, 0.0))
]


def inputs_and_hidden(count: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    inputs = torch.rand(count, INPUTS, dtype=torch.float64, generator=generator) * 4 - 2
    inputs[0], hidden = -5.0, torch.randn(count, HIDDEN, dtype=torch.float64, generator=generator) * 2
    hidden[0] = 9.0
    return inputs, hidden


def whole_coefficients(plan: ReconstructionPlan, inputs: Tensor, hidden: Tensor, ledger: Ledger) -> NDArray[np.int64]:
    linear = release_reconstruction(inputs, hidden, plan, key=KEY, ledger=ledger).linear
    return np.rint(linear.numpy() * LEVELS / plan.hidden.unit).astype(np.int64)


def reconstruction_loss(plan: ReconstructionPlan, folder: Path) -> Fraction:
    inputs, hidden = inputs_and_hidden(8)
    ledger = new_ledger(folder)
    moved = whole_coefficients(plan, inputs, hidden, ledger) - whole_coefficients(plan, inputs[1:], hidden[1:], ledger)
    return Fraction(int(np.abs(moved).sum()), plan.coefficients.scale)


@pytest.mark.parametrize("plan", RECONSTRUCTIONS, ids=lambda plan: f"{plan.hidden.norm}-{plan.low}")
def test_neighbours_of_a_reconstruction_lose_at_most_epsilon(
    plan: ReconstructionPlan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_noise(monkeypatch)
    assert Fraction(99, 100) * Fraction(plan.epsilon) < reconstruction_loss(plan, tmp_path) <= Fraction(plan.epsilon)
    if plan is RECONSTRUCTIONS[1]:  # the published sensitivity, d (beta + 2), loses more
        published = GridLaplace(INPUTS * (HIDDEN + 2) * LEVELS**2, 1, 1 / 0.5)
        monkeypatch.setattr(ReconstructionPlan, "coefficients", property(lambda plan: published))
        (tmp_path / "published").mkdir()
        assert reconstruction_loss(plan, tmp_path / "published") > Fraction(plan.epsilon)


def test_coefficients_are_those_of_the_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    plan = RECONSTRUCTIONS[0]
    for value in (math.nan, math.inf, -math.inf, 1e300):  # stays within the bounds
        broken = torch.full((1, INPUTS), value, dtype=torch.float64), torch.ones(1, HIDDEN)
        found = whole_coefficients(plan, *broken, new_ledger(tmp_path, str(value)))
        assert int(np.abs(found).sum()) <= plan.coefficients.sensitivity
    inputs, hidden = inputs_and_hidden(20)
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
        release_reconstruction(torch.zeros(3, INPUTS), torch.zeros(2, HIDDEN), RECONSTRUCTIONS[0], key=KEY, ledger=ledger)
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
