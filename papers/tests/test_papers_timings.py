"""Times of making cells: one entry for each call that made any, each cell counted once, and nothing that is not known."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from twinproof_papers.cell import FILE, Call, Cell, made_in
from twinproof_papers.under_attack import UnderAttack

ONE, TWO, THREE, FOUR = (
    Cell(
        "dpsgd",
        number,
        {"data": {"source": "digits"}, "recipe": "dpsgd", "epsilon": 1.0},
        UnderAttack(limit=5, certified=False),
    )
    for number in range(4)
)


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


def test_a_call_lasts_until_its_last_cell(tmp_path: Path, clock: list[float]) -> None:
    _call(tmp_path, clock, "table", [(ONE, 10.04), (TWO, 25.5)], processes=14)
    (entry,) = made_in(tmp_path, [ONE, TWO])
    assert entry.pop("began").endswith("Z")
    assert entry == {"experiment": "table", "processes": 14, "seconds": 25.5, "cells": 2, "cells_here": 2}


def test_each_cell_counts_where_it_was_made_last(tmp_path: Path, clock: list[float]) -> None:
    """Planted: a count of lines, which would say that two cells were made three times."""
    _call(tmp_path, clock, "table", [(ONE, 1.0), (TWO, 2.0)])
    _call(tmp_path, clock, "overwritten", [(TWO, 5.0)])
    calls = made_in(tmp_path, [ONE, TWO])
    assert [(call["experiment"], call["cells"], call["cells_here"]) for call in calls] == [
        ("table", 2, 1),
        ("overwritten", 1, 1),
    ]
    assert sum(call["cells_here"] for call in calls) == 2 < len((tmp_path / FILE).read_text().splitlines())
    assert [call["experiment"] for call in made_in(tmp_path, [TWO])] == ["overwritten"]


def test_other_experiments_cells_are_said(tmp_path: Path, clock: list[float]) -> None:
    _call(tmp_path, clock, "table", [(ONE, 1.0), (TWO, 2.0), (THREE, 3.0)])
    (entry,) = made_in(tmp_path, [ONE, FOUR])
    assert (entry["cells"], entry["cells_here"], entry["seconds"]) == (3, 1, 3.0)


def test_nothing_is_said_of_what_is_not_known(tmp_path: Path, clock: list[float]) -> None:
    assert made_in(tmp_path, [ONE]) == []
    Call(tmp_path, "table", 1)
    assert not (tmp_path / FILE).exists(), "a call that made nothing leaves nothing"
    _call(tmp_path, clock, "table", [(ONE, 1.0), (TWO, 2.0)])
    path = tmp_path / FILE
    path.write_text(path.read_text()[:-20] + "\n")  # a line that a kill cut off
    (entry,) = made_in(tmp_path, [ONE, TWO])
    assert (entry["cells"], entry["seconds"]) == (1, 1.0)
