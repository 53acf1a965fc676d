"""A cell of StoBatch as published, from its training on: three readings of the same votes, for the noise that is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from twinproof.certification.appendix_n import appendix_n_radius
from twinproof.certification.confidence import Evidence, after_tau
from twinproof.certification.method import Method
from twinproof.certification.record import find_certification
from twinproof.certification.run import smoothed_for_run
from twinproof.certification.two_noise_bounds import composition_radius, single_pass_radius
from twinproof.certification.two_noises import TwoNoisesSite
from twinproof.data.load import load
from twinproof.data.record import Dataset
from twinproof.papers.cell_store import CellStore
from twinproof.papers.effort import Effort
from twinproof.papers.making import make_cells
from twinproof.papers.methods import MNIST, cells_of
from twinproof.papers.reproduce import reproduce
from twinproof.papers.rereading import COMPOSITION, PUBLISHED, TIGHT, Rereading
from twinproof.runs.run import Run

EFFORT = Effort(seeds=1, limit=6, epochs=0.4, quick=True, device="cpu")
VOTES = np.array([0, 60, 120, 160, 190, 199, 200], dtype=np.int64)


@dataclass(frozen=True)
class Made:
    run: Run
    digits: Dataset
    numbers: dict[str, Any]

    @property
    def reading(self) -> Rereading:
        found = find_certification(self.run.root)
        assert found is not None
        return Rereading.of(self.run, self.digits, found.settings)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    (cell,) = cells_of("stobatch-published", MNIST, EFFORT, epsilon=1.0)
    store = CellStore(tmp_path_factory.mktemp("cells"))
    (one,) = make_cells([cell], store, EFFORT)
    return Made(Run.open(store.run_folder(cell)), load("digits"), one.numbers)


def test_nothing_is_promised_and_every_reading_says_what_it_is_worth(made: Made) -> None:
    assert made.numbers["privacy_status"] == "refuted"
    assert made.numbers["epsilon"] is None
    assert made.numbers["bound_status"] == {TIGHT: "proven", COMPOSITION: "proven", PUBLISHED: "refuted"}
    for name in ("certified", "certified_there", "mean_radius"):
        assert set(made.numbers[name]) == {TIGHT, COMPOSITION, PUBLISHED}


def test_readings_are_the_formulas_for_the_noise_that_is_drawn(made: Made) -> None:
    """Against ``certify.two_noises`` itself; the sound ones would fail here with the scale that the paper states."""
    smoothed = smoothed_for_run(made.run, made.digits, torch.device("cpu"), method=Method(norm="linf"))
    assert isinstance(smoothed.site, TwoNoisesSite)
    drawn, rule = smoothed.site.rates("linf"), made.reading.rules[TIGHT]
    bounds = rule.confidence.bounds(Evidence.of_votes(200, VOTES), 0.001, rule.classes, rule.runner_up)
    low, high = after_tau(*bounds, rule.tau)
    read = {bound: made.reading.read(bound, VOTES, 200, 0.001).radii for bound in made.reading.bounds}
    assert read[COMPOSITION] == pytest.approx(composition_radius(low, high, drawn), abs=2e-6)
    assert read[PUBLISHED] == pytest.approx(appendix_n_radius(low, high, drawn), abs=2e-6)
    # Rounding the layer to the grid takes a little of the single pass, where the input alone is not the cheaper place.
    assert np.all(read[TIGHT] <= single_pass_radius(low, high, drawn) + 1e-9)
    assert np.all(read[TIGHT] >= read[COMPOSITION])
    assert read[PUBLISHED][-1] == pytest.approx(2 * read[COMPOSITION][-1], abs=4e-6)
    assert read[COMPOSITION][-1] > 0


@pytest.mark.slow
def test_the_whole_table_on_embedded_data(tmp_path: Path) -> None:
    made = reproduce("stobatch-mnist", tmp_path, EFFORT)
    assert {cell["method"] for cell in made.results["cells"]} == {"stobatch", "stobatch-published"}
    page = (made.folder / "table.md").read_text()
    assert "| StoBatch, as published (no privacy) | refuted: no epsilon is promised |" in page
    assert "not comparable with the paper" in page
