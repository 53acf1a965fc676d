"""The release of class sums and products: loss between neighbours in exact arithmetic, noise on everything, ledger first."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from functional_release import new_ledger, some_records, without_noise
from numpy.typing import NDArray
from torch import Tensor

from twinproof.errors import ConfigError, DataError
from twinproof.keys import Key
from twinproof.privacy import functional as mechanism
from twinproof.privacy.accounting import epsilon_pld
from twinproof.privacy.functional import (
    CLASS_SUMS,
    LEVELS,
    PRODUCTS,
    FeatureBall,
    FunctionalPlan,
    output_polynomial,
    release_sums,
)
from twinproof.privacy.ledger import Ledger
from twinproof.privacy.linear_maps import Norm

FEATURES, CLASSES = 5, 3
KEY = Key.from_seed(9)
PLANS = [FunctionalPlan(FeatureBall(norm, 1.5, FEATURES), CLASSES, epsilon) for norm in Norm for epsilon in (0.3, 7.0)]
Whole = NDArray[np.int64]


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
    own = noises(PLANS[0], ledgers(), 160)
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


@pytest.mark.parametrize("share", [0.1, 0.5, 1 / 3, 0.999])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.7])
def test_the_events_cost_epsilon_and_not_more(epsilon: float, share: float) -> None:
    plan = FunctionalPlan(FeatureBall(Norm.L1, 1.0, 4), 2, epsilon, share)
    exact = sum((1 / Fraction(event.noise_multiplier) for event in plan.events), Fraction(0))
    assert Fraction(epsilon) * Fraction(999_999, 1_000_000) < exact <= Fraction(epsilon)
    assert epsilon_pld(plan.events, 1e-9) <= epsilon


def test_releases_of_one_ledger_share_no_noise(ledgers: Callable[[], Ledger]) -> None:
    ledger = ledgers()
    first, second = noises(PLANS[0], ledger, 2)
    assert (first != second).all()
    assert len(ledger.events()) == 4


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epsilon": 0.0}, "epsilon cannot"),
        ({"epsilon": math.nan}, "epsilon cannot"),
        ({"classes": 1}, "classes cannot"),
        ({"label_share": 0.0}, "label_share"),
        ({"label_share": 1.0}, "label_share"),
        ({"epsilon": 1e-9}, "scale cannot"),
    ],
)
def test_plans_without_meaning_are_refused(wrong: dict[str, object], message: str) -> None:
    settings = {"ball": FeatureBall(Norm.LINF, 1.0, 50), "classes": 3, "epsilon": 1.0, **wrong}
    with pytest.raises(ConfigError, match=message):
        FunctionalPlan(**settings)  # type: ignore[arg-type]


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
