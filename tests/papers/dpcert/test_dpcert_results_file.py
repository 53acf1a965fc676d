"""Results files: JSON that reads back, an entry to a line, and Table 2 small enough to be kept with the source."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from synthetic_smoothing import certified, falling

from twinproof.papers.catalogue.experiments import EXPERIMENTS
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.effort import Effort
from twinproof.papers.reproductions import REPRODUCTIONS
from twinproof.papers.results_file import results_record, results_text
from twinproof.runs.environment import software_versions

MOST_BYTES = 400_000
EFFORT = Effort(seeds=3)


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """Table 2 with three repetitions, numbers as long as real ones."""
    generator = random.Random(3)

    def value(cell: Cell, measure: str, sigma: float, place: float) -> float:
        return round(min(1.0, falling(cell, measure, sigma, place) + 0.02 * generator.random()), 6 if measure == "acr" else 4)

    table = REPRODUCTIONS["dpcert-table2"]
    done = [_as_made(one) for one in certified(table.cells(EFFORT), value)]
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
    assert len(json.dumps(record, indent=2).encode()) > MOST_BYTES, "planted: a line for each number"


def test_every_cell_has_its_line(record: dict[str, Any]) -> None:
    lines = results_text(record).splitlines()
    assert sum('"measurement": {' in line for line in lines) == len(record["cells"]) == 3 * (3 * 2 + 6 * 3 * 2)
    assert [line for line in lines if line.startswith('"')] == sorted(line for line in lines if line.startswith('"'))


def test_points_are_kept_where_nothing_else_has_them(record: dict[str, Any]) -> None:
    assert record["panels"] == []
    curves = REPRODUCTIONS["hgm-fig1"]
    computed = results_record(EXPERIMENTS["hgm-fig1"], Effort(), curves.findings([]), [], [])
    assert computed["panels"][0]["lines"][0]["points"]
    assert computed["made_in"] == []
    assert json.loads(results_text(computed))["cells"] == []


@pytest.mark.parametrize("text", ["naïve\n", 'a "quote"'])
def test_text_survives(text: str) -> None:
    assert json.loads(results_text({text: [text], "empty": [], "number": 1.5})) == {text: [text], "empty": [], "number": 1.5}
