"""One cell: trained with one report at the end, gone on with, and memory given back whatever happens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinproof.data.record import Dataset
from twinproof.errors import ConfigError
from twinproof.runs.run import Run
from twinproof_papers import making
from twinproof_papers.cell import Cell, CellStore, Failure
from twinproof_papers.making import measure
from twinproof_papers.options import Options
from twinproof_papers.under_attack import UnderAttack

TRAINING: dict[str, Any] = {"data": {"source": "digits"}, "recipe": "regular", "model": "mlp", "steps": 40, "batch_size": 32}


class Counted(UnderAttack):
    """A measurement that takes no time: the shares of a model that knows nothing."""

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> dict[str, Any]:
        return {"clean": 0.1}


class Failing(UnderAttack):
    """A measurement that ends in a user's error."""

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> dict[str, Any]:
        raise ConfigError("cannot be measured", where="here")


CELL = Cell("regular", 0, TRAINING, Counted(limit=10, certified=False))


def test_a_cell_reports_once_at_the_end_and_is_kept(tmp_path: Path, dataset: Dataset) -> None:
    store = CellStore(tmp_path)
    measured = measure(CELL, store, dataset, device="cpu")
    assert store.finished(CELL) is not None
    assert measured.numbers["clean"] == 0.1
    run = Run.open(store.run_folder(CELL))
    lines = [json.loads(line) for line in run.layout.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [40]
    assert lines[0]["test_accuracy"] == run.record["accuracy"]["value"] == measured.numbers["accuracy"]


def test_a_run_that_is_there_is_not_trained_again(tmp_path: Path, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CellStore(tmp_path)
    first = measure(CELL, store, dataset, device="cpu")
    (tmp_path / CELL.name / "cell.json").unlink()
    monkeypatch.setattr("twinproof.recipes.train.run_loop", None)  # a step would end in an error
    assert measure(CELL, store, dataset, device="cpu").numbers == first.numbers


@pytest.mark.parametrize("measurement", [Counted, Failing])
def test_memory_is_given_back_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measurement: type[UnderAttack]
) -> None:
    freed: list[int] = []
    monkeypatch.setattr("twinproof.training.device_memory.free_device_memory", lambda: freed.append(1))
    cell = Cell("regular", 0, TRAINING, measurement(limit=10, certified=False))
    outcome = making._attempt(cell, CellStore(tmp_path), Options(seeds=1, device="cpu"))
    assert isinstance(outcome, Failure) is (measurement is Failing)
    assert freed == [1]
