"""The noisy reconstruction objective: loss between neighbours in exact arithmetic, its coefficients, its ledger line."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from functional_release import new_ledger, without_noise
from numpy.typing import NDArray
from torch import Tensor

from twinproof.errors import ConfigError, DataError
from twinproof.keys import Key
from twinproof.privacy.accounting import LaplaceEvent
from twinproof.privacy.discrete_laplace import GridLaplace
from twinproof.privacy.functional import LEVELS, FeatureBall, reconstruction_polynomial
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


def test_planted_published_sensitivity_loses_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """d (beta + 2), as the paper has it."""
    without_noise(monkeypatch)
    published = GridLaplace(INPUTS * (HIDDEN + 2) * LEVELS**2, 1, 1 / 0.5)
    monkeypatch.setattr(ReconstructionPlan, "coefficients", property(lambda plan: published))
    assert loss(PLANS[1], tmp_path) > Fraction(PLANS[1].epsilon)


def test_coefficients_are_those_of_the_objective(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_noise(monkeypatch)
    plan = PLANS[0]
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


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
def test_broken_inputs_stay_within_the_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    without_noise(monkeypatch)
    plan = PLANS[0]
    found = whole(plan, torch.full((1, INPUTS), value, dtype=torch.float64), torch.ones(1, HIDDEN), new_ledger(tmp_path))
    assert int(np.abs(found).sum()) <= plan.coefficients.sensitivity


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
