"""Runs with unequal noise at the input from training to audit; what a wrong certifier would write is refused by ``verify``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import twinproof as tp
from twinproof.auditing.certificate_search import AttackBudget
from twinproof.auditing.verify import verify_run
from twinproof.certification import noise_site
from twinproof.certification.noise_site import NormBound, WhitenedLayer, diagonal_norm
from twinproof.data.load import load
from twinproof.layers.noise import Law
from twinproof.recipes.train import train
from twinproof.runs.run import Run
from twinproof_verify.evidence import Originals

SAMPLING = tp.Sampling(n0=20, n=200)
SETTINGS: dict[str, Any] = {
    "data": {"source": "digits"},
    "delta": 1e-4,
    "model": "mlp",
    "steps": 60,
    "seed": 1,
    "recipe": "hgm-pixeldp",
    "noise_layer": {"place": "input", "redistribution": "public"},
    "performance": {"device": "cpu", "checkpoint_every": 1000, "report_every": 1000},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return train(SETTINGS, tmp_path_factory.mktemp("trained") / "run").root


def test_a_run_is_certified_attacked_audited_and_verified(trained: Path, tmp_path: Path) -> None:
    root, test = Path(shutil.copytree(trained, tmp_path / "run")), load("digits").test
    for method in (tp.Method(norm="linf"), tp.Method(norm="l2"), tp.Method(norm="linf", bound="published")):
        made = tp.certify(Run.open(root), sampling=SAMPLING, method=method, limit=12)
        assert sum(one.correct and one.radius > 0 for one in made.certificates) >= 6
    plan = tp.AttackPlan(norm="linf", sizes=(0.01,), steps=3, restarts=1, draws=2)
    tp.attack(Run.open(root), plan=plan, sampling=SAMPLING, limit=6)
    budget = AttackBudget(steps=3, draws=4, restarts=1, directions=2, rounds=1, screen=50, votes=500)
    verdict = tp.audit(Run.open(root), budget=budget, certificates="linf", limit=4).verdict
    assert verdict is not None
    assert not verdict.refuted
    result = verify_run(root, originals=Originals(test.inputs, test.labels), redraw=3)
    assert result.problems == ()
    again = [check for check in result.checks if check.name.startswith("votes of")]
    assert len(again) == 4
    assert all("0 votes differ" in check.detail for check in again)


def _mean_for_least(scales: NDArray[np.float64], law: Law, norm: str) -> NormBound:
    return diagonal_norm(np.full_like(scales, scales.mean()), law, norm)


def _scales_forgotten(scales: NDArray[np.float64], law: Law, norm: str) -> NormBound:
    return diagonal_norm(np.ones_like(scales), law, norm)


@pytest.mark.parametrize("norm", ["l1", "l2", "linf"])
@pytest.mark.parametrize("bug", [_mean_for_least, _scales_forgotten])
def test_a_planted_certifier_with_another_norm_is_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Any, norm: str
) -> None:
    root = Path(shutil.copytree(trained, tmp_path / "run"))
    monkeypatch.setattr(noise_site, "diagonal_norm", bug)
    tp.certify(Run.open(root), sampling=SAMPLING, method=tp.Method(norm=norm), limit=3)
    problems = [problem.what for problem in verify_run(root).problems]
    assert problems == ["operator_norm is not that of the input divided by the scales of its noise"]


def test_a_planted_certifier_that_pays_for_the_grid_alone_is_refused(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What float64 errs is far less than a step, and is asked for all the same."""
    root = Path(shutil.copytree(trained, tmp_path / "run"))
    monkeypatch.setattr(WhitenedLayer, "slack_for", lambda self, law: self.noise.grid * self.dimension**0.5)
    tp.certify(Run.open(root), sampling=SAMPLING, limit=3)
    assert [problem.what for problem in verify_run(root).problems] == [
        "slack is understated: rounding to the grid and in float64 costs more"
    ]
