"""Cells put back from results files: every committed file follows from its own cells, and one that does not is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import benchmarks_path
import pytest

from cells_from_results import cells_of, put_back, read_record
from twinproof.errors import CheckFailed, ConfigError, DataError
from twinproof_papers.cell import CELLS, CellStore
from twinproof_papers.results_file import FORMAT

RESULTS = benchmarks_path.BENCHMARKS.parent / "results"
SMALL = RESULTS / "hgm-fig3.json"
OF_PAPERS = {path.stem: record for path in sorted(RESULTS.glob("*.json")) if "item" in (record := json.loads(path.read_text()))}
TOLD_IN_PART = tuple(f"dpcert-fig{number}" for number in (5, 6, *range(10, 15), *range(17, 20)))
OF_TODAY = [name for name, record in OF_PAPERS.items() if record["format"] == FORMAT and name not in TOLD_IN_PART]


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    record = json.loads(SMALL.read_text())
    change(record)
    path = folder / SMALL.name
    path.write_text(json.dumps(record))
    return path


@pytest.mark.parametrize("name", OF_TODAY)
def test_the_results_of_every_file_follow_from_its_cells(name: str, tmp_path: Path) -> None:
    assert put_back([RESULTS / f"{name}.json"], tmp_path) > 0


def test_cells_are_those_of_the_file(tmp_path: Path) -> None:
    put_back([SMALL], tmp_path)
    store = CellStore(tmp_path / CELLS)
    for measured in cells_of(SMALL, read_record(SMALL)):
        assert store.finished(measured.cell) == measured


@pytest.mark.parametrize("name", TOLD_IN_PART[:2])
def test_cells_that_are_told_in_part_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a part of what was measured"):
        put_back([RESULTS / f"{name}.json"], tmp_path)
    assert not (tmp_path / CELLS).exists()


def add(record: Any, *place: str | int, amount: float) -> None:
    *outer, last = place
    for key in outer:
        record = record[key]
    record[last] += amount


@pytest.mark.parametrize(
    "place",
    [("cells", 0, "numbers", "certified", "tight", 10), ("comparison", 0, "difference"), ("made_in", 0, "cells_here")],
    ids=["another number", "another difference", "another time"],
)
def test_a_file_whose_results_do_not_follow_is_refused_and_nothing_is_left(
    place: tuple[str | int, ...], tmp_path: Path
) -> None:
    with pytest.raises(CheckFailed, match="other results follow"):
        put_back([changed(tmp_path, lambda record: add(record, *place, amount=1))], tmp_path / "out")
    assert not (tmp_path / "out" / CELLS).exists()


def test_files_that_tell_other_numbers_of_one_model_are_refused(tmp_path: Path) -> None:
    """Planted where no result looks, so that each file by itself is in order."""

    def another_unread_number(record: dict[str, Any]) -> None:
        (shared,) = [cell for cell in record["cells"] if cell["name"].startswith("pixeldp-0")]
        add(shared, "numbers", "certified", "tight", 1, amount=0.001)

    path = changed(tmp_path, another_unread_number)
    assert put_back([path], tmp_path / "alone") == 6
    for number, files in enumerate(([path, RESULTS / "stobatch-fig6.json"], [RESULTS / "stobatch-fig6.json", path])):
        with pytest.raises(CheckFailed, match="differences in cells"):
            put_back(files, tmp_path / str(number))
        assert not (tmp_path / str(number) / CELLS).exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda record: add(record, "format", amount=-1),
        lambda record: add(record, "cells_share", "training", "epochs", amount=1),
        lambda record: record["cells"].pop(),
    ],
    ids=["older", "other settings", "a lost cell"],
)
def test_a_file_of_another_program_is_refused(change: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be put back"):
        put_back([changed(tmp_path, change)], tmp_path / "out")


@pytest.mark.parametrize("text", [None, "{", "[1]", '{"format": 3}'], ids=["missing", "broken", "a list", "something else"])
def test_what_is_no_results_file_is_refused(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "given.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match="cannot be put back"):
        put_back([path], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_cells_that_are_there_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / CELLS).mkdir()
    with pytest.raises(ConfigError, match="there are cells already"):
        put_back([SMALL], tmp_path)
    assert list((tmp_path / CELLS).iterdir()) == []
