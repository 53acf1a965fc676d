"""Results files: JSON that reads back, an entry to a line, small enough to be kept with the source, and nothing lost."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from synthetic_smoothing import certified, falling, measured_in_full

from twinproof.errors import DataError
from twinproof.runs.environment import software_versions
from twinproof_papers.catalogue.experiments import EXPERIMENTS
from twinproof_papers.cell import Cell, CellStore, Measured
from twinproof_papers.options import Options
from twinproof_papers.reproduce import REPRODUCTIONS
from twinproof_papers.results_file import FILE, read_cells, results_record, results_text

MOST_BYTES = 300_000
EFFORT = Options(seeds=3)
OF_TABLE_2 = ("dpcert-fig7", "dpcert-fig15", "dpcert-fig16")


@pytest.fixture(scope="module")
def done() -> list[Measured]:
    """Table 2 with three repetitions, numbers as long as real ones."""
    generator = random.Random(3)

    def value(cell: Cell, measure: str, sigma: float, place: float) -> float:
        return round(min(1.0, falling(cell, measure, sigma, place) + 0.02 * generator.random()), 6 if measure == "acr" else 4)

    return [_as_made(one) for one in certified(REPRODUCTIONS["dpcert-table2"].cells(EFFORT), value)]


@pytest.fixture(scope="module")
def record(done: list[Measured]) -> dict[str, Any]:
    table = REPRODUCTIONS["dpcert-table2"]
    call = {"experiment": "dpcert-table2", "began": "", "processes": 14, "seconds": 1.0, "cells": 1, "cells_here": 1}
    return results_record(EXPERIMENTS["dpcert-table2"], EFFORT, table.findings(done), done, [call])


def _as_made(one: Measured) -> Measured:
    numbers = {**one.numbers, "epsilon": 2.999123, "accuracy": 0.9812, "privacy_status": "proven"}
    more = {"smoothed_accuracy": 0.9612, "abstained": 0.0123, "largest_radius": 0.799123, "seconds": 12.345}
    numbers["smoothed"] = {sigma: {**each, **more} for sigma, each in numbers["smoothed"].items()}
    made = {**one.made, "device": "cuda: NVIDIA H200", "versions": software_versions(), "training_seconds": 123.4}
    return Measured(one.cell, numbers, made)


def test_it_reads_back_and_is_small(record: dict[str, Any]) -> None:
    text = results_text(record)
    assert json.loads(text) == json.loads(json.dumps(record))
    assert len(text.encode()) < MOST_BYTES


def test_every_cell_is_whole_again(record: dict[str, Any], done: list[Measured], tmp_path: Path) -> None:
    path = tmp_path / "dpcert-table2.json"
    path.write_text(results_text(record))
    whole = [json.loads(json.dumps(one.as_dict())) for one in done]
    assert read_cells(path) == whole
    planted = results_text({**record, "cells": whole})
    assert len(planted.encode()) > MOST_BYTES, "planted: every setting in every cell"


def test_settings_of_one_cell_are_never_anothers(record: dict[str, Any]) -> None:
    rates = {cell["training"].get("learning_rate") for cell in record["cells"]}
    assert "learning_rate" not in record["cells_share"]["training"]
    assert {0.5, 4.0} < rates
    assert set(record["cells_share"]["made"]) == {"device", "versions"}, "when and how long is told of each"
    assert all({"date", "seconds", "training_seconds"} == set(cell["made"]) for cell in record["cells"])


@pytest.mark.parametrize("kept_together", [False, True])
def test_figures_of_table_2_name_its_cells(
    record: dict[str, Any], done: list[Measured], tmp_path: Path, kept_together: bool
) -> None:
    def place(name: str) -> Path:
        path = tmp_path / f"{name}.json" if kept_together else tmp_path / name / FILE
        path.parent.mkdir(exist_ok=True)
        return path

    known = {one.cell.name: one for one in done}
    for name in OF_TABLE_2:
        figure = REPRODUCTIONS[name]
        used = [known[cell.name] for cell in figure.cells(EFFORT)]
        text = results_text(results_record(EXPERIMENTS[name], EFFORT, figure.findings(used), used, []))
        assert len(text) < 20_000
        place(name).write_text(text)
        with pytest.raises(DataError, match="no such file"):
            read_cells(place(name))
        if not kept_together:
            store = CellStore(tmp_path / "cells")
            for one in used:
                store.keep(one)
            assert read_cells(place(name)) == json.loads(json.dumps([one.as_dict() for one in used])), "the cells themselves"
            shutil.rmtree(store.root)
    place("dpcert-table2").write_text(results_text(record))
    for name in OF_TABLE_2:
        assert [cell["name"] for cell in read_cells(place(name))] == [cell.name for cell in REPRODUCTIONS[name].cells(EFFORT)]
    fewer = {**record, "cells": record["cells"][1:]}
    place("dpcert-table2").write_text(results_text(fewer))
    with pytest.raises(DataError, match="1 missing, the first regular-0"):
        read_cells(place("dpcert-fig7"))


@pytest.mark.parametrize("name", ["dpcert-fig8", "dpcert-fig4", "dpcert-table3"])
def test_other_figures_have_cells_of_their_own(name: str) -> None:
    made = REPRODUCTIONS[name]
    cells = certified(made.cells(EFFORT), falling)
    written = results_record(EXPERIMENTS[name], EFFORT, made.findings(cells), cells, [])
    assert written["cells_in"] == ""
    assert len(written["cells"]) == len(cells)


@pytest.mark.parametrize("name", ["dpcert-fig5", "dpcert-fig11"])
def test_metrics_are_small(name: str) -> None:
    """With nine metrics at all sigmas over 10,000 images."""
    made = REPRODUCTIONS[name]
    cells = measured_in_full(made.cells(EFFORT))
    written = results_record(EXPERIMENTS[name], EFFORT, made.findings(cells), cells, [])
    assert len(results_text(written).encode()) < MOST_BYTES
    planted = results_text({**written, "cells": [one.as_dict() for one in cells]})
    assert len(planted.encode()) > 5 * MOST_BYTES, "planted: everything that the cells hold"


@pytest.mark.parametrize("number", [6, 17, 18, 19])
def test_metrics_are_written_once(number: int) -> None:
    made = REPRODUCTIONS[f"dpcert-fig{number}"]
    cells = certified(made.cells(EFFORT), falling)
    written = results_record(EXPERIMENTS[f"dpcert-fig{number}"], EFFORT, made.findings(cells), cells, [])
    assert written["cells_in"] == "dpcert-fig5"
    assert set(written["cells"]) == {cell.name for cell in REPRODUCTIONS["dpcert-fig5"].cells(EFFORT)}


def test_numbers_have_no_noise_behind_them(record: dict[str, Any]) -> None:
    assert "00000000" not in results_text(record)
    assert "99999999" not in results_text(record)


def test_every_cell_has_its_line(record: dict[str, Any]) -> None:
    lines = results_text(record).splitlines()
    assert sum('"numbers": {' in line for line in lines) == len(record["cells"]) == 3 * (3 * 2 + 6 * 3 * 2)
    assert [line for line in lines if line.startswith('"')] == sorted(line for line in lines if line.startswith('"'))


def test_points_are_kept_where_nothing_else_has_them(record: dict[str, Any]) -> None:
    assert record["panels"] == []
    curves = REPRODUCTIONS["hgm-fig1"]
    computed = results_record(EXPERIMENTS["hgm-fig1"], Options(), curves.findings([]), [], [])
    assert computed["panels"][0]["lines"][0]["points"]
    assert computed["made_in"] == []
    assert json.loads(results_text(computed))["cells"] == []


@pytest.mark.parametrize("text", ["naïve\n", 'a "quote"'])
def test_text_survives(text: str) -> None:
    assert json.loads(results_text({text: [text], "empty": [], "number": 1.5})) == {text: [text], "empty": [], "number": 1.5}
