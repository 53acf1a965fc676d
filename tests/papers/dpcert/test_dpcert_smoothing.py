"""Certifying one model at several sigmas: complete runs, counts that follow from their certificates, nothing half done."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import twinproof as tp
from twinproof.attacks.threat import Threat
from twinproof.auditing.verify import verify_run
from twinproof.certification.record import find_certification
from twinproof.data.load import load
from twinproof.errors import ConfigError, RunError
from twinproof.papers import smoothing_numbers as counting
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import CellStore, Measured
from twinproof.papers.dpcert.methods import MNIST, cells_of, grounds_of
from twinproof.papers.effort import Effort
from twinproof.papers.making import make_cells
from twinproof.papers.smoothing import Smoothing, radii_of
from twinproof.recipes.train import train
from twinproof.runs.run import Run

EFFORT = Effort(seeds=1, limit=10, epochs=2, quick=True, device="cpu")
(QUICK,) = grounds_of((MNIST,), EFFORT)
(CELL,) = cells_of("regular", QUICK, EFFORT)
FOLDERS = {0.25: "run", 0.5: "run-sigma-0.5", 1.0: "run-sigma-1"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> CellStore:
    return CellStore(tmp_path_factory.mktemp("cells"))


@pytest.fixture(scope="module")
def done(store: CellStore) -> Measured:
    """Killed while the second sigma was certified, and called again."""

    def killed(run: Run, *given: Any, **named: Any) -> Any:
        if run.root.name == FOLDERS[0.5]:
            raise KeyboardInterrupt
        return tp.certify(run, *given, **named)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(counting, "certify", killed)
        with pytest.raises(KeyboardInterrupt):
            make_cells([CELL], store, EFFORT)
    assert store.finished(CELL) is None
    (measured,) = make_cells([CELL], store, EFFORT)
    return measured


def test_each_sigma_has_a_complete_run_of_the_same_model(store: CellStore, done: Measured) -> None:
    runs = {sigma: Run.open(store.run_folder(CELL).with_name(name)) for sigma, name in FOLDERS.items()}
    assert len({run.model_sha256 for run in runs.values()}) == 1
    for sigma, run in runs.items():
        found = find_certification(run.root, name="l2")
        assert found is not None
        settings, asked = found.settings, found.settings.sampling
        assert (settings.noise.sigma, settings.state, asked.n0, asked.n) == (sigma, "complete", 20, 200)
    assert verify_run(runs[1.0].root).ok


def test_numbers_follow_from_the_certificates(store: CellStore, done: Measured) -> None:
    for sigma, name in FOLDERS.items():
        found = find_certification(store.run_folder(CELL).with_name(name))
        assert found is not None
        certificates = found.certificates
        numbers = done.numbers["smoothed"][f"{sigma:g}"]
        radii = [one.radius for one in certificates if one.prediction == one.label]
        assert numbers["acr"] == pytest.approx(sum(radii) / 10, abs=2e-6)
        shares = [sum(radius >= place for radius in radii) / 10 for place in radii_of(sigma)]
        assert numbers["certified"] == pytest.approx(shares)
    assert done.numbers["clean"] == Run.open(store.run_folder(CELL)).record["accuracy"]["value"]


def test_fgsm_has_a_share_for_each_size(done: Measured) -> None:
    shares = done.numbers["fgsm"]
    assert len(shares) == 5
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.parametrize("planted", [False, True])
def test_fgsm_falls_with_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool) -> None:
    """Of a model with a fixed seed; planted: a step of no size, whatever is asked for."""
    dataset = load("digits")
    settings = {
        "recipe": "regular",
        "model": "mlp",
        "steps": 200,
        "learning_rate": 0.5,
        "seed": 1,
        "performance": {"device": "cpu"},
    }
    run = train(settings, tmp_path / "run", dataset=dataset)
    if planted:
        monkeypatch.setattr(counting, "Threat", lambda norm, size: Threat(norm, 1e-6))
    plan = Smoothing((0.25,), limit=100, fgsm_sizes=(0.0005, 0.1, 0.5))
    small, middle, large = counting.fgsm_accuracy(run, dataset, plan, device="cpu")
    assert small > 0.8
    assert (small - 0.2 > middle > large) is not planted


def test_a_copy_made_after_certifying_is_refused(store: CellStore, done: Measured, tmp_path: Path) -> None:
    """Planted: the copy is taken from a run that has certificates, with them: its set would be that of another sigma."""
    shutil.copytree(store.run_folder(CELL), tmp_path / "late")
    late = Run.open(tmp_path / "late")
    with pytest.raises(RunError, match="other settings"):
        tp.certify(late, load("digits"), sigma=0.5, limit=10, device="cpu")


@pytest.mark.parametrize("sigmas", [(), (0.5, 0.5), (0.25, 0.5, 0.25)])
def test_sigmas_that_make_no_sense_are_refused(sigmas: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="sigmas cannot be used"):
        Smoothing(sigmas)


@pytest.mark.parametrize(
    "changes", [{"sigmas": (0.5,)}, {"limit": 9}, {"n0": 7}, {"n": 9}, {"alpha": 0.01}, {"fgsm_sizes": (0.1,)}]
)
def test_every_setting_changes_the_name(changes: dict[str, Any]) -> None:
    plan = CELL.measurement
    assert isinstance(plan, Smoothing)
    other = Cell(CELL.method, CELL.repetition, CELL.training, replace(plan, **changes))
    assert other.name != CELL.name
    json.dumps(other.settings, allow_nan=False)


def test_certified_accuracy_is_read_at_the_radius_of_table_2() -> None:
    for sigma in (0.25, 0.5, 1.0):
        radii = radii_of(sigma)
        assert 0.25 in radii
        assert radii[0] == 0
        assert radii[-1] == 4 * sigma
