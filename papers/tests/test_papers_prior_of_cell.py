"""The weights that a cell starts from are in its name, but for the first ones and where it starts at random."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from twinproof.data.load import load
from twinproof.files import canonical_json
from twinproof.layers.models.prior import prior_sha256
from twinproof.recipes.config import parse_train_config
from twinproof.recipes.prior_of_run import describe_prior
from twinproof.recipes.resolve import resolve
from twinproof_papers import cell as prior_of_cell
from twinproof_papers.cell import FIRST_PRIOR, Cell, CellStore, Measured
from twinproof_papers.dpcert.methods import HOUSE, MNIST, UPPER_END, cells_of
from twinproof_papers.options import Options
from twinproof_papers.results_file import read_cells
from twinproof_papers.smoothing import Smoothing

RESULTS = Path(__file__).parents[2] / "results" / "dpcert-table2.json"
EFFORT = Options(seeds=1)
OTHER = "0" * 64
MADE: dict[str, Any] = {"device": "cpu: test", "versions": {}, "date": "", "seconds": 1.0}
HOUSE_ROW = {"data": {"source": "digits"}, "recipe": "twinproof"}


def ship(monkeypatch: pytest.MonkeyPatch, digest: str) -> None:
    monkeypatch.setattr(prior_of_cell, "prior_sha256", lambda: digest)


def name_of(cell: Cell) -> str:
    """A fresh cell: names are worked out once."""
    return replace(cell).name


def cell_of(**training: Any) -> Cell:
    return Cell("row", 0, {**HOUSE_ROW, **training}, Smoothing((0.5,)))


USING = {
    "the house row of Table 2": cells_of(HOUSE, MNIST, EFFORT, sigma=0.5)[0],
    "its metrics": cells_of(HOUSE, MNIST, EFFORT, sigma=0.5, metrics=True)[0],
    "the row without privacy": cells_of(UPPER_END, MNIST, EFFORT, sigma=0.5)[0],
    "the house recipe as it comes": cell_of(),
    "another recipe that asks for them": cell_of(recipe="dpcert-gaussian", model="gelu-cnn", width=2, prior="figures"),
}
RANDOM = {
    "DPSGD": cells_of("dpsgd", MNIST, EFFORT)[0],
    "DP-Gaussian": cells_of("dp-gaussian", MNIST, EFFORT, sigma=0.5)[0],
    "the house recipe without them": cell_of(prior="none"),
    "the house recipe with another network": cell_of(model="small-cnn"),
    "the house recipe with another width": cell_of(model="gelu-cnn", width=1),
}


@pytest.mark.parametrize("cell", USING.values(), ids=USING)
def test_other_weights_make_another_cell(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(monkeypatch, FIRST_PRIOR)
    before, store = name_of(cell), CellStore(tmp_path)
    store.keep(Measured(replace(cell), {"clean": 0.5}, MADE))
    ship(monkeypatch, OTHER)
    assert name_of(cell) != before
    assert store.finished(replace(cell)) is None, "not reused"
    assert replace(cell).settings["prior"] == {"name": "figures", "sha256": OTHER}


@pytest.mark.parametrize("cell", USING.values(), ids=USING)
def test_a_name_that_forgets_the_weights_is_caught(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: settings as they were, in which only the name of the weights stands."""
    ship(monkeypatch, OTHER)
    planted = {key: value for key, value in replace(cell).settings.items() if key != "prior"}
    ship(monkeypatch, FIRST_PRIOR)
    assert planted == replace(cell).settings, "the same whatever is shipped"


@pytest.mark.parametrize("cell", RANDOM.values(), ids=RANDOM)
def test_who_starts_at_random_keeps_the_name(cell: Cell, monkeypatch: pytest.MonkeyPatch) -> None:
    ship(monkeypatch, FIRST_PRIOR)
    before = name_of(cell)
    ship(monkeypatch, OTHER)
    assert name_of(cell) == before


def test_cells_of_the_committed_table_stay_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names are digests of settings without the weights, which were the first ones."""
    ship(monkeypatch, FIRST_PRIOR)
    known = read_cells(RESULTS)
    for one in known:
        settings = {key: one[key] for key in ("method", "repetition", "training", "measurement")}
        assert one["name"].endswith(hashlib.sha256(canonical_json(settings).encode()).hexdigest()[:12])
    (house,) = cells_of(HOUSE, MNIST, EFFORT, sigma=0.5)
    kept = [one for one in known if (one["method"], one["training"]["sigma"]) == (HOUSE, 0.5) and _mnist(one)]
    assert kept
    assert all(set(house.settings) == set(one) - {"name", "numbers", "made"} for one in kept)


def _mnist(one: dict[str, Any]) -> bool:
    return bool(one["training"]["data"]["source"] == "mnist")


def test_the_digest_is_the_one_that_a_run_binds() -> None:
    config = parse_train_config(HOUSE_ROW, {"model": "gelu-cnn", "width": 2, "prior": "figures", "delta": 1e-4})
    assert describe_prior(resolve(config, load("digits")))["prior"]["sha256"] == prior_sha256()


def test_the_first_weights_are_those_that_were_measured_first() -> None:
    """The file as it is shipped now. Whoever ships another one drops this test, and leaves ``FIRST_PRIOR`` as it is."""
    assert prior_sha256() == FIRST_PRIOR
