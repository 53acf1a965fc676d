"""The authors' settings are the authors', cells carry budgets and no seeds, and figures share what Table 2 made."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from synthetic_smoothing import smoothing_of

from twinproof.data.load import load
from twinproof.recipes.config import parse_train_config
from twinproof.recipes.registry import RECIPES
from twinproof.recipes.resolve import resolve
from twinproof_papers.cell import CellStore
from twinproof_papers.dpcert.methods import (
    FASHION_MNIST,
    METHODS,
    MNIST,
    PUBLISHED_METHODS,
    SIGMAS,
    Setup,
    cells_of,
    models_of,
    setups_of,
)
from twinproof_papers.options import Options
from twinproof_papers.reproduce import REPRODUCTIONS

ONE = Options(seeds=1)


@pytest.mark.parametrize(
    ("setup", "method", "wanted"),
    [
        (
            MNIST,
            "dpsgd",
            {"learning_rate": 0.5, "batch_size": 512, "epochs": 40, "clip_norm": 0.1, "momentum": 0.9, "copies": 0},
        ),
        (MNIST, "dp-gaussian", {"learning_rate": 0.5, "batch_size": 512, "epochs": 40, "clip_norm": 0.1, "copies": 2}),
        (FASHION_MNIST, "dp-macer", {"learning_rate": 4.0, "batch_size": 2048, "epochs": 40, "clip_norm": 0.1, "copies": 2}),
        (FASHION_MNIST, "psac", {"learning_rate": 4.0, "batch_size": 2048, "clip_rule": "psac-paper", "clip_r": 0.01}),
        (MNIST, "regular", {"learning_rate": 0.01, "batch_size": 512, "epochs": 40, "momentum": 0.9, "epsilon": None}),
        (MNIST, "dp-gaussian-replaced", {"copies": 1, "originals": False}),
        (
            FASHION_MNIST,
            "dp-smoothadv-consistency",
            {"recipe": "dpcert-smoothadv", "copies": 2, "batch_size": 2048, "clip_rule": "flat"},
        ),
        (
            MNIST,
            "gaussian",
            {"model": "gelu-cnn", "width": 2, "prior": "figures", "batch_size": 512, "epochs": 60, "averaging": 0.999}
            | {"learning_rate": 0.05, "schedule": "cosine", "epsilon": None, "sigma": 0.5},
        ),
        (MNIST, "dp-smoothadv-psac", {"clip_rule": "psac-paper", "copies": 2, "recipe": "dpcert-smoothadv"}),
    ],
)
def test_settings_of_the_authors(setup: Setup, method: str, wanted: dict[str, Any]) -> None:
    (cell,) = cells_of(method, setup, ONE, sigma=0.5)
    resolved = cell.settings["training"]
    assert {name: resolved[name] for name in wanted} == wanted


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_accepted_has_its_budget_and_no_seed(method: str) -> None:
    for cell in models_of(method, MNIST, ONE):
        config = parse_train_config(cell.training)
        assert config.seed is None, "a run with a known seed is not private"
        assert (config.epsilon, config.noise_multiplier) == ((3.0 if METHODS[method].private else None), None)
        assert config.delta == 1e-5
        assert RECIPES[config.recipe].private == METHODS[method].private


def test_smoothadv_with_consistency_has_the_authors_weights_and_the_recipes_attack() -> None:
    (cell,) = cells_of("dp-smoothadv-consistency", MNIST, ONE, sigma=0.5)
    (plain,) = cells_of("dp-smoothadv", MNIST, ONE, sigma=0.5)
    both, alone = (parse_train_config(one.training).regulariser for one in (cell, plain))
    assert both is not None
    assert alone is not None
    assert (both.weight, both.eta, alone.weight, alone.eta) == (0.5, 0.5, 0, 0)
    assert (both.radius, both.attack_steps) == (alone.radius, alone.attack_steps) == (0.25, 2)


@pytest.mark.parametrize("method", METHODS)
def test_fewer_epochs_are_fewer_for_every_method(method: str) -> None:
    """Planted once: a row's own epochs, which won over what was asked for."""
    for options in (Options(seeds=1, epochs=2), Options(seeds=1, epochs=2, quick=True)):
        assert all(cell.training["epochs"] == 2 for cell in models_of(method, MNIST, options))


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
def test_a_model_is_certified_under_the_noise_that_it_saw_or_under_all(method: str) -> None:
    cells = models_of(method, FASHION_MNIST, ONE)
    plans = [smoothing_of(cell) for cell in cells]
    assert all((plan.n0, plan.n, plan.alpha, plan.limit) == (100, 10_000, 0.001, None) for plan in plans)
    if METHODS[method].augmented:
        assert [plan.sigmas for plan in plans] == [(sigma,) for sigma in SIGMAS]
        assert [parse_train_config(cell.training).sigma for cell in cells] == list(SIGMAS)
    else:
        assert [plan.sigmas for plan in plans] == [SIGMAS], "one model, three sets of certificates"


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_house_recipe_decides_its_own_settings(sigma: float) -> None:
    """A cell is known by its settings, so that its network and copies are named; all but the term at 0.25 are the recipe's."""
    (cell,) = cells_of("twinproof", MNIST, ONE, sigma=sigma)
    named = {"model": "gelu-cnn", "width": 2, "prior": "figures", "copies": 8}
    if sigma == 0.25:
        named |= {"copies": 4, "regulariser": {"weight": 5.0, "eta": 0.5}}
    asked = {"data": {"source": "mnist"}, "recipe": "twinproof", "epsilon": 3.0, "delta": 1e-5, "sigma": sigma}
    assert cell.training == asked | named
    assert parse_train_config(asked).copies == 8
    (shorter,) = cells_of("twinproof", MNIST, Options(seeds=1, epochs=2), sigma=sigma)
    assert shorter.training == cell.training | {"epochs": 2}


def test_table_2_is_thirty_models_and_forty_two_certifications() -> None:
    published = {method.name for method in PUBLISHED_METHODS}
    cells = REPRODUCTIONS["dpcert-table2"].cells(ONE)
    ours = [cell for cell in cells if cell.method in published]
    assert len(ours) == 30
    assert sum(len(smoothing_of(cell).sigmas) for cell in ours) == 42
    lengths = [len(smoothing_of(cell).sigmas) for cell in cells]
    assert lengths == sorted(lengths, reverse=True), "long ones first, so that none is left alone at the end"
    trained = [cell.method for cell in cells if METHODS[cell.method].augmented]
    assert set(trained[: 3 * 2 * 3]) == {"dp-smoothadv", "twinproof", "gaussian"}
    assert len({cell.name for cell in REPRODUCTIONS["dpcert-table2"].cells(Options(seeds=3))}) == 3 * len(cells)


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


@pytest.mark.parametrize("number", [5, 6, 10, 11, 12, 13, 14, 17, 18, 19])
def test_metrics_are_measured_on_the_runs_of_table_2(number: int, tmp_path: Path) -> None:
    table = {cell.name: cell for cell in REPRODUCTIONS["dpcert-table2"].cells(ONE)}
    store = CellStore(tmp_path)
    for cell in REPRODUCTIONS[f"dpcert-fig{number}"].cells(ONE):
        assert cell.base is not None
        assert cell.name not in table
        assert store.run_folder(cell) == store.run_folder(table[cell.base.name])


@pytest.mark.parametrize("name", [name for name in REPRODUCTIONS if name.startswith("dpcert-")])
def test_a_quick_look_needs_embedded_data_only(name: str) -> None:
    cells = REPRODUCTIONS[name].cells(Options(seeds=1, quick=True))
    assert {cell.training["data"]["source"] for cell in cells} == {"digits"}
    assert len({cell.name for cell in cells}) == len(cells)
    assert all(smoothing_of(cell).limit == 40 for cell in cells)


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
