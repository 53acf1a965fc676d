"""Cells: their names, what is kept of them on disk, how long they took."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, RunError
from twinproof.files import canonical_json
from twinproof.layers.networks import prior_sha256
from twinproof.recipes.registry import RECIPES
from twinproof.runs.run import Run
from twinproof_papers import cell as prior_of_cell
from twinproof_papers import making
from twinproof_papers.cell import FILE, FIRST_PRIOR, Call, Cell, CellStore, Failure, Measured, made_in
from twinproof_papers.dpcert.methods import HOUSE, MNIST, UPPER_END, cells_of
from twinproof_papers.experiment import Options
from twinproof_papers.making import measure
from twinproof_papers.methods import MNIST as PHAN_MNIST
from twinproof_papers.methods import cells_of as cells_of_phan
from twinproof_papers.results_file import read_cells
from twinproof_papers.smoothing import Smoothing
from twinproof_papers.under_attack import UnderAttack

MADE: dict[str, Any] = {"device": "cpu: test", "versions": {}, "date": "", "seconds": 1.0}
TRAINING: dict[str, Any] = {"data": {"source": "digits"}, "recipe": "dpsgd", "epsilon": 1.0}
CELL = Cell("dpsgd", 0, TRAINING, UnderAttack(limit=10, certified=False))
OTHERS = [
    replace(CELL, repetition=1),
    replace(CELL, training={**TRAINING, "epsilon": 2.0}),
    replace(CELL, training={**TRAINING, "epochs": 3.0}),
    replace(CELL, measurement=UnderAttack(limit=11, certified=False)),
    replace(CELL, measurement=UnderAttack(limit=10, alpha=0.01, certified=False)),
]


def _kept(store: CellStore, cell: Cell = CELL) -> Path:
    store.keep(Measured(cell, {"clean": 0.5}, MADE))
    return store.root / cell.name / "cell.json"


def test_a_kept_cell_is_found_again(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    assert store.finished(CELL) is None
    _kept(store)
    found = store.finished(CELL)
    assert found is not None
    assert (found.cell, found.numbers) == (CELL, {"clean": 0.5})
    store.forget(CELL)
    assert store.finished(CELL) is None


@pytest.mark.parametrize("other", OTHERS, ids=range(len(OTHERS)))
def test_a_cell_made_under_other_settings_is_refused(tmp_path: Path, other: Cell) -> None:
    """Planted: a finished cell in the folder of another one, as a name that forgot a setting would bring about."""
    assert len({cell.name for cell in (CELL, *OTHERS)}) == len(OTHERS) + 1
    store = CellStore(tmp_path)
    path = _kept(store)
    planted = tmp_path / other.name
    shutil.copytree(path.parent, planted)
    with pytest.raises(RunError, match="other settings"):
        store.finished(other)


def test_a_recipe_that_changes_its_mind_makes_other_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the same words to ``train``, behind which a default has changed."""
    before = replace(CELL).name
    monkeypatch.setitem(RECIPES, "dpsgd", replace(RECIPES["dpsgd"], defaults={"copies": 0, "learning_rate": 0.123}))
    assert replace(CELL).name != before


def test_a_broken_cell_is_refused(tmp_path: Path) -> None:
    path = _kept(CellStore(tmp_path))
    for text in ("{", "{}", "[]", path.read_text().replace('"format": 1', '"format": 2')):
        path.write_text(text)
        with pytest.raises(RunError, match="not the one that is asked for"):
            CellStore(tmp_path).finished(CELL)


def test_figures_share_cells() -> None:
    one, other = (cells_of_phan("securesgd", PHAN_MNIST, Options(seeds=2), epsilon=0.5) for _ in range(2))
    assert [cell.name for cell in one] == [cell.name for cell in other]
    assert len({cell.digest for cell in one}) == 2
    on_gpu = cells_of_phan("securesgd", PHAN_MNIST, Options(seeds=2, device="cuda"), epsilon=0.5)
    assert [cell.name for cell in on_gpu] == [cell.name for cell in one], "a device changes speed, not settings"


def test_the_command_says_what_was_asked() -> None:
    for wrong in ({"seeds": 0}, {"limit": 0}, {"epochs": 0.0}):
        with pytest.raises(ConfigError, match="cannot be used"):
            Options(**wrong)
    options = Options(seeds=2, limit=50, epochs=1.5, quick=True, data_root=Path("somewhere"))
    assert options.command("hgm-fig3") == "twinproof reproduce hgm-fig3 --seeds 2 --limit 50 --epochs 1.5 --quick"


RESULTS = Path(__file__).parents[2] / "results" / "dpcert-table2.json"
EFFORT = Options(seeds=1)
OTHER = "0" * 64
HOUSE_ROW = {"data": {"source": "digits"}, "recipe": "twinproof"}


def ship(monkeypatch: pytest.MonkeyPatch, digest: str) -> None:
    monkeypatch.setattr(prior_of_cell, "prior_sha256", lambda network: digest)


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
    """Planted: settings as they were, in which only the name of the weights stands; they are the same whatever is shipped."""
    ship(monkeypatch, FIRST_PRIOR)
    before, settings, store = name_of(cell), replace(cell).settings, CellStore(tmp_path)
    store.keep(Measured(replace(cell), {"clean": 0.5}, MADE))
    ship(monkeypatch, OTHER)
    assert name_of(cell) != before
    assert store.finished(replace(cell)) is None, "not reused"
    assert replace(cell).settings == settings | {"prior": {"name": "figures", "sha256": OTHER}}


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


def test_the_first_weights_are_those_that_were_measured_first() -> None:
    """The file as it is shipped now. Whoever ships another one drops this test, and leaves ``FIRST_PRIOR`` as it is."""
    assert prior_sha256() == FIRST_PRIOR


ONE, TWO = (replace(CELL, repetition=number) for number in range(2))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, in its only entry."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def _call(root: Path, clock: list[float], name: str, cells: list[tuple[Cell, float]], processes: int = 1) -> None:
    call = Call(root, name, processes)
    began = clock[0]
    for cell, after in cells:
        clock[0] = began + after
        call.made(cell)


def test_each_cell_counts_where_it_was_made_last(tmp_path: Path, clock: list[float]) -> None:
    """Planted: a count of lines, which would say that two cells were made three times."""
    _call(tmp_path, clock, "table", [(ONE, 1.04), (TWO, 2.0)], processes=14)
    (entry,) = made_in(tmp_path, [ONE, TWO])
    assert entry.pop("began").endswith("Z")
    assert entry == {"experiment": "table", "processes": 14, "seconds": 2.0, "cells": 2, "cells_here": 2}
    _call(tmp_path, clock, "overwritten", [(TWO, 5.0)])
    calls = made_in(tmp_path, [ONE, TWO])
    assert [(call["experiment"], call["cells"], call["cells_here"]) for call in calls] == [
        ("table", 2, 1),
        ("overwritten", 1, 1),
    ]
    assert sum(call["cells_here"] for call in calls) == 2 < len((tmp_path / FILE).read_text().splitlines())
    assert [call["experiment"] for call in made_in(tmp_path, [TWO])] == ["overwritten"]


def test_nothing_is_said_of_what_is_not_known(tmp_path: Path, clock: list[float]) -> None:
    assert made_in(tmp_path, [ONE]) == []
    Call(tmp_path, "table", 1)
    assert not (tmp_path / FILE).exists(), "a call that made nothing leaves nothing"
    _call(tmp_path, clock, "table", [(ONE, 1.0), (TWO, 2.0)])
    path = tmp_path / FILE
    path.write_text(path.read_text()[:-20] + "\n")  # a line that a kill cut off
    (entry,) = made_in(tmp_path, [ONE, TWO])
    assert (entry["cells"], entry["seconds"]) == (1, 1.0)


TRAINING_measure = {"data": {"source": "digits"}, "recipe": "regular", "model": "mlp", "steps": 40, "batch_size": 32}


class Counted(UnderAttack):
    """A measurement that takes no time: the shares of a model that knows nothing."""

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> dict[str, Any]:
        return {"clean": 0.1}


class Failing(UnderAttack):
    """A measurement that ends in a user's error."""

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> dict[str, Any]:
        raise ConfigError("cannot be measured", where="here")


CELL_measure = Cell("regular", 0, TRAINING_measure, Counted(limit=10, certified=False))


def test_a_cell_reports_once_at_the_end_and_is_kept(tmp_path: Path, dataset: Dataset) -> None:
    store = CellStore(tmp_path)
    measured = measure(CELL_measure, store, dataset, device="cpu")
    assert store.finished(CELL_measure) is not None
    assert measured.numbers["clean"] == 0.1
    run = Run.open(store.run_folder(CELL_measure))
    lines = [json.loads(line) for line in run.layout.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [40]
    assert lines[0]["test_accuracy"] == run.record["accuracy"]["value"] == measured.numbers["accuracy"]


def test_a_run_that_is_there_is_not_trained_again(tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CellStore(tmp_path)
    first = measure(CELL_measure, store, dataset, device="cpu")
    (tmp_path / CELL_measure.name / "cell.json").unlink()
    monkeypatch.setattr("twinproof.recipes.train.run_loop", None)  # a step would end in an error
    assert measure(CELL_measure, store, dataset, device="cpu").numbers == first.numbers


@pytest.mark.parametrize("measurement", [Counted, Failing])
def test_memory_is_given_back_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measurement: type[UnderAttack]
) -> None:
    freed: list[int] = []
    monkeypatch.setattr(making, "free_device_memory", lambda: freed.append(1))
    cell = Cell("regular", 0, TRAINING_measure, measurement(limit=10, certified=False))
    outcome = making._attempt(cell, CellStore(tmp_path), Options(seeds=1, device="cpu"))
    assert isinstance(outcome, Failure) is (measurement is Failing)
    assert freed == [1]
