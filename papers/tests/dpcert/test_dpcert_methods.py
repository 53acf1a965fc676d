"""The authors' settings are the authors', cells carry budgets and no seeds, and figures share what Table 2 made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from synthetic_smoothing import smoothing_of

import twinproof as tp
from twinproof.attacks.threat import Threat
from twinproof.auditing.verify import verify_run
from twinproof.certification.method import find_certification
from twinproof.data.load import load
from twinproof.recipes.config import parse_train_config
from twinproof.recipes.registry import RECIPES
from twinproof.recipes.resolve import resolve
from twinproof.recipes.train import train
from twinproof.runs.run import Run
from twinproof_papers import smoothing as counting
from twinproof_papers.cell import CellStore, Measured
from twinproof_papers.dpcert.methods import (
    FASHION_MNIST,
    METHODS,
    MNIST,
    SIGMAS,
    cells_of,
    models_of,
    setups_of,
)
from twinproof_papers.experiment import Options
from twinproof_papers.making import make_cells
from twinproof_papers.reproduce import REPRODUCTIONS
from twinproof_papers.smoothing import Smoothing, radii_of

ONE = Options(seeds=1)


@pytest.mark.parametrize("method", METHODS)
def test_settings_of_a_quick_look_fit_its_data(method: str) -> None:
    options = Options(seeds=1, quick=True)
    (quick,) = setups_of((MNIST,), options)
    (cell, *_) = models_of(method, quick, options)
    without_budget = {name: value for name, value in cell.training.items() if name not in ("data", "epsilon")}
    noise = {"noise_multiplier": 1.0} if METHODS[method].private else {}  # in place of seconds of calibration
    config = parse_train_config({**without_budget, **noise, "data": {"source": "digits"}})
    assert resolve(config, load("digits")).model in ("gelu-cnn", "small-cnn", "tramer-boneh-cnn", "mlp")


@pytest.mark.parametrize("method", METHODS)
def test_a_model_has_its_budget_and_no_seed_and_is_certified_under_the_noise_it_saw_or_all(method: str) -> None:
    """Planted once: a row's own epochs, which won over what was asked for."""
    cells = models_of(method, FASHION_MNIST, ONE)
    for cell in cells:
        config = parse_train_config(cell.training)
        assert config.seed is None, "a run with a known seed is not private"
        assert (config.epsilon, config.noise_multiplier) == ((3.0 if METHODS[method].private else None), None)
        assert config.delta == 1e-5
        assert RECIPES[config.recipe].private == METHODS[method].private
    for options in (Options(seeds=1, epochs=2), Options(seeds=1, epochs=2, quick=True)):
        assert all(cell.training["epochs"] == 2 for cell in models_of(method, MNIST, options))
    plans = [smoothing_of(cell) for cell in cells]
    assert all((plan.n0, plan.n, plan.alpha, plan.limit) == (100, 10_000, 0.001, None) for plan in plans)
    if METHODS[method].augmented:
        assert [plan.sigmas for plan in plans] == [(sigma,) for sigma in SIGMAS]
        assert [parse_train_config(cell.training).sigma for cell in cells] == list(SIGMAS)
    else:
        assert [plan.sigmas for plan in plans] == [SIGMAS], "one model, three sets of certificates"


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("dpcert-fig7", 0),
        ("dpcert-fig15", 0),
        ("dpcert-fig16", 0),
        ("dpcert-fig4", 4 + 4),  # four combinations and four numbers of copies
        ("dpcert-fig8", 4 * 3 * 2),
        ("dpcert-fig9", 4 * 3 * 2),
        ("dpcert-table3", 2 * 2),
        ("dpcert-table4", 4 * 2),
    ],
)
def test_figures_share_the_cells_of_table_2(name: str, new: int) -> None:
    shared = {cell.name for cell in REPRODUCTIONS["dpcert-table2"].cells(ONE)}
    own = [cell.name for cell in REPRODUCTIONS[name].cells(ONE)]
    assert len(own) == len(set(own)), "each once"
    assert len(set(own) - shared) == new


@pytest.mark.parametrize("number", [5, 14, 19])
def test_metrics_are_measured_on_the_runs_of_table_2(number: int, tmp_path: Path) -> None:
    table = {cell.name: cell for cell in REPRODUCTIONS["dpcert-table2"].cells(ONE)}
    store = CellStore(tmp_path)
    for cell in REPRODUCTIONS[f"dpcert-fig{number}"].cells(ONE):
        assert cell.base is not None
        assert cell.name not in table
        assert store.run_folder(cell) == store.run_folder(table[cell.base.name])


def test_the_script_makes_everything_and_each_where_it_finds_most() -> None:
    text = (Path(__file__).resolve().parents[3] / "benchmarks" / "reproduce_dpcert.sh").read_text()
    lines = re.findall(r"^  (dpcert-\w+) +# (\d+)(?:, and (\d+) measured)?", text, re.MULTILINE)
    assert sorted(name for name, *_ in lines) == sorted(name for name in REPRODUCTIONS if name.startswith("dpcert-"))
    seen: set[str] = set()
    for name, trained, measured in lines:
        cells = {cell.name: cell for cell in REPRODUCTIONS[name].cells(ONE) if cell.name not in seen}
        assert sum(cell.base is None for cell in cells.values()) == int(trained), name
        assert sum(cell.base is not None for cell in cells.values()) == int(measured or 0), name
        assert all(cell.base is None or cell.base.name in seen for cell in cells.values()), "no model is trained for a metric"
        seen |= set(cells)


EFFORT = Options(seeds=1, limit=10, epochs=2, quick=True, device="cpu")
(QUICK,) = setups_of((MNIST,), EFFORT)
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
