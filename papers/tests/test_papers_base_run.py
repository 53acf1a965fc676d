"""The run that a later measurement goes on with: made again where it is gone, told, and never mixed with what is left of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import twinproof as tp
from twinproof.certification.method import find_certification
from twinproof.data.record import Dataset
from twinproof.errors import RunError
from twinproof.progress import Silent
from twinproof.runs.layout import read_run_json
from twinproof.runs.run import Run
from twinproof_papers import making as measuring
from twinproof_papers import smoothing as smoothing_numbers
from twinproof_papers.cell import RUN_AGAIN, Cell, CellStore, Measured
from twinproof_papers.example_metrics.measure import ExampleMeasurement
from twinproof_papers.experiment import Options
from twinproof_papers.making import make_cells, measure
from twinproof_papers.smoothing import Smoothing, sigma_name

SMOOTHING = Smoothing((0.25, 0.5), limit=6, n0=10, n=60, fgsm_sizes=(0.01,))
TRAINING: dict[str, Any] = {
    "data": {"source": "digits"},
    "recipe": "regular",
    "model": "mlp",
    "steps": 6,
    "batch_size": 32,
}
CELL = Cell("regular", 0, TRAINING, ExampleMeasurement(SMOOTHING))
SEEDED = replace(CELL, training={**TRAINING, "seed": 5})
EFFORT = Options(seeds=1, device="cpu")
FOLDERS = {0.25: "run", 0.5: "run-sigma-0.5"}


class Said(Silent):
    """Remembers the log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        """One line more."""
        self.lines.append(text)


def base_of(cell: Cell) -> Cell:
    assert cell.base is not None
    return cell.base


@pytest.fixture(scope="module")
def measured_bases(tmp_path_factory: pytest.TempPathFactory, dataset: Dataset) -> Path:
    store = CellStore(tmp_path_factory.mktemp("bases"))
    for cell in (CELL, SEEDED):
        measure(base_of(cell), store, dataset, device="cpu")
    return store.root


@pytest.fixture
def store(measured_bases: Path, tmp_path: Path) -> CellStore:
    """The base is finished, and its runs are there."""
    shutil.copytree(measured_bases, tmp_path / "cells")
    return CellStore(tmp_path / "cells")


def folders(store: CellStore, cell: Cell = CELL) -> dict[float, Path]:
    return {sigma: store.run_folder(cell).with_name(name) for sigma, name in FOLDERS.items()}


def lose(store: CellStore, cell: Cell = CELL, *sigmas: float) -> str:
    """The runs of a cell are gone; the digest of the weights that they had."""
    digest = Run.open(store.run_folder(cell)).model_sha256
    for sigma in sigmas or FOLDERS:
        shutil.rmtree(folders(store, cell)[sigma])
    return digest


def kept(store: CellStore, cell: Cell = CELL) -> bytes:
    return (store.root / base_of(cell).name / "cell.json").read_bytes()


def made(store: CellStore, cell: Cell = CELL) -> tuple[Measured, list[str]]:
    """Measures ``cell``; also what the log says of a run that was made again."""
    said = Said()
    (done,) = make_cells([cell], store, EFFORT, progress=said)
    return done, [line for line in said.lines if "again" in line]


def check_one_model(store: CellStore, done: Measured) -> None:
    """Radii in the numbers are those of the certificates there, each at its own sigma, all of one model."""
    runs = {sigma: Run.open(folder) for sigma, folder in folders(store, done.cell).items()}
    assert len({run.model_sha256 for run in runs.values()}) == 1
    for sigma, run in runs.items():
        certification = find_certification(run.root)
        assert certification is not None
        settings = certification.settings
        assert (settings.noise.sigma, settings.network.model_sha256) == (sigma, run.model_sha256)
        radii = [one.radius if one.correct else 0.0 for one in certification.certificates]
        wanted = np.unique(np.floor(np.round(np.array(radii) / 0.1, 9)), return_counts=True)[1]
        groups = done.numbers["radius"][sigma_name(sigma)]["gradient_norm"]["groups"]
        assert [group["count"] for group in groups] == wanted.tolist()
    assert done.numbers["clean"] == runs[0.25].record["accuracy"]["value"]


def test_a_run_that_is_gone_is_made_again_and_told_once(store: CellStore) -> None:
    before, settings = kept(store), read_run_json(store.run_folder(CELL))["config"]
    lost = lose(store)
    done, lines = made(store)
    assert kept(store) == before, "the numbers of the base are not touched"
    assert read_run_json(store.run_folder(CELL))["config"] == settings
    assert Run.open(store.run_folder(CELL)).model_sha256 != lost, "no seed is known: it is another model, and that is told"
    assert "another training under the same settings" in done.made[RUN_AGAIN]
    assert len(lines) == 1
    assert CELL.name in lines[0]
    check_one_model(store, done)


@pytest.mark.parametrize("left", [(), (0.5,)], ids=["nothing left", "a copy left"])
def test_kept_numbers_alone_provide_no_run(store: CellStore, monkeypatch: pytest.MonkeyPatch, left: tuple[float, ...]) -> None:
    """Planted: a base counts as provided when its numbers are kept, whatever became of its run."""
    lose(store, CELL, *(sigma for sigma in FOLDERS if sigma not in left))
    monkeypatch.setattr(measuring, "provide_base", lambda *_, **__: None)
    with pytest.raises(RunError, match="could not be made"):
        made(store)


def test_what_is_left_of_another_model_is_not_mixed_in(store: CellStore) -> None:
    lost = lose(store, CELL, 0.25)
    done, lines = made(store)
    check_one_model(store, done)
    assert Run.open(folders(store)[0.5]).model_sha256 != lost
    assert len(lines) == 1


def test_a_copy_with_the_certificates_of_another_sigma_is_replaced(store: CellStore) -> None:
    """Planted: what copying a certified run as it is would leave there."""
    there = folders(store)
    shutil.rmtree(there[0.5])
    shutil.copytree(there[0.25], there[0.5])
    assert not SMOOTHING.is_whole(there[0.25])
    done, _ = made(store)
    check_one_model(store, done)


def stopped_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("twinproof.recipes.train.run_loop", stopped)


def stopped_at_the_second_sigma(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(run: Run, *given: Any, **named: Any) -> Any:
        if run.root.name == FOLDERS[0.5]:
            raise KeyboardInterrupt
        return tp.certify(run, *given, **named)

    monkeypatch.setattr(smoothing_numbers, "certify", stopped)


@pytest.mark.parametrize("stop", [stopped_in_training, stopped_at_the_second_sigma])
def test_making_again_goes_on_where_it_was_stopped(store: CellStore, stop: Callable[[pytest.MonkeyPatch], None]) -> None:
    before = kept(store)
    lose(store)
    with pytest.MonkeyPatch.context() as patched:
        stop(patched)
        with pytest.raises(KeyboardInterrupt):
            made(store)
    begun = read_run_json(store.run_folder(CELL))
    assert begun["state"] == ("training" if stop is stopped_in_training else "complete")
    weights = begun.get("files", {}).get("model.safetensors")
    done, lines = made(store)
    after = read_run_json(store.run_folder(CELL))
    assert after["created"] == begun["created"], "the very run that was begun"
    assert weights in (None, after["files"]["model.safetensors"])
    assert kept(store) == before
    assert len(lines) == 1, "told although the run was there when the second call came"
    check_one_model(store, done)
