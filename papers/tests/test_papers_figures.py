"""The catalogue of experiments, and the figures of HGM and StoBatch from cells with known numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crowded_text import too_long
from synthetic_cells import measured
from twinproof.certification.confidence import Evidence, after_tau
from twinproof.certification.method import Method, find_certification
from twinproof.certification.run import smoothed_for_run
from twinproof.certification.two_noise_bounds import composition_radius, single_pass_radius
from twinproof.certification.two_noises import TwoNoisesSite
from twinproof.data.load import load
from twinproof.data.record import Dataset
from twinproof.errors import CheckFailed, DataError
from twinproof.layers.fixed_draws import PSI
from twinproof.privacy.mechanisms import gaussian_delta
from twinproof.runs.run import Run
from twinproof_papers import sigma_curves
from twinproof_papers.catalogue import EXPERIMENTS
from twinproof_papers.cell import Cell, CellStore
from twinproof_papers.comparison import compare, markdown
from twinproof_papers.drawing import write_picture
from twinproof_papers.experiment import Options
from twinproof_papers.findings import Findings, Line, Panel
from twinproof_papers.making import make_cells
from twinproof_papers.methods import MNIST, cells_of
from twinproof_papers.reproduce import PICTURE, REPRODUCTIONS, figure_of, reproduce
from twinproof_papers.under_attack import COMPOSITION, PUBLISHED, TIGHT, Rereading

WHOLE = (
    [f"hgm-fig{number}" for number in range(1, 7)]
    + ["stobatch-table1", *(f"stobatch-fig{number}" for number in range(1, 10))]
    + [f"dpcert-table{number}" for number in range(1, 5)]
    + [f"dpcert-fig{number}" for number in range(1, 20)]
    + ["pixeldp-readme", "securesgd-mnist", "stobatch-mnist", "linf-mnist"]
)


def test_every_table_and_figure_is_listed_and_what_has_no_obstacle_can_be_made() -> None:
    assert sorted(EXPERIMENTS) == sorted(WHOLE)
    assert {name for name, one in EXPERIMENTS.items() if not one.obstacle} == set(REPRODUCTIONS)


@pytest.mark.parametrize(
    ("name", "key", "value", "unit"),
    [
        ("hgm-fig3", "hgm-pixeldp over pixeldp", 4.17, "points"),
        ("hgm-fig5", "securesgd over dpsgd", 10.74, "points"),
        ("hgm-fig5", "securesgd rise", 29.67, "points"),
        ("securesgd-mnist", "securesgd conventional epsilon 0.2", 41.64, "%"),
        ("securesgd-mnist", "securesgd certified size 0.6", 7.99, "%"),
        ("stobatch-fig2", "stobatch conventional epsilon 0.2", 82.7, "%"),
        ("stobatch-fig2", "stobatch-published conventional epsilon 2", 89.59, "%"),
        ("stobatch-fig2", "stobatch-published over adlm-published", 56.21, "points"),
        ("stobatch-fig4", "securesgd drop", 17.07, "points"),
        ("stobatch-fig6", "pixeldp certified size 0.6 FGSM", 77.47, "%"),
        ("stobatch-mnist", "stobatch-published certified size 0.05", 84.29, "%"),
        ("dpcert-table2", "mnist dp-gaussian sigma 0.25 average certified radius", 0.735, "radius"),
        ("dpcert-table2", "cifar10 dp-macer sigma 1 certified at 0.25", 22.3, "%"),
        ("dpcert-table2", "fashion-mnist psac sigma 0.5 accuracy", 86.34, "%"),
        ("dpcert-table4", "fashion-mnist clipping norm 0.05", 83.42, "%"),
    ],
)
def test_printed_numbers(name: str, key: str, value: float, unit: str) -> None:
    found = {number.key: number for number in EXPERIMENTS[name].published}[key]
    assert (found.value, found.unit) == (value, unit)


def test_keys_are_unique_and_numbers_say_where_they_stand() -> None:
    for experiment in EXPERIMENTS.values():
        keys = [number.key for number in experiment.published]
        assert len(keys) == len(set(keys)), experiment.name
        assert all(number.where and number.unit in ("%", "points", "radius") for number in experiment.published)
    assert len(EXPERIMENTS["dpcert-table2"].published) == 21 * 9


def test_data_decide_whether_a_figure_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWINPROOF_DATA", raising=False)
    figure = EXPERIMENTS["hgm-fig3"]
    without = figure.availability(tmp_path)
    assert not without.runs
    assert "mnist is not there" in without.reason
    folder = tmp_path / "mnist"
    folder.mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte").write_bytes(b"")
    assert figure.availability(tmp_path).runs
    assert not EXPERIMENTS["hgm-fig2"].availability(tmp_path).runs, "cifar10 is still missing"
    assert not EXPERIMENTS["stobatch-fig9"].availability(tmp_path).runs
    assert "vision transformer" in EXPERIMENTS["dpcert-fig2"].availability(tmp_path).reason
    both = EXPERIMENTS["dpcert-table2"].availability(tmp_path)
    assert not both.runs, "one of its two data sets is missing"
    assert "fashion-mnist is not there" in both.reason
    assert "the data set mnist" not in both.reason
    assert EXPERIMENTS["hgm-fig1"].availability(tmp_path).runs


EFFORT = Options(seeds=3)
BASE = {
    "hgm-pixeldp": 0.6,
    "pixeldp": 0.5,
    "securesgd": 0.7,
    "securesgd-input": 0.8,
    "securesgd-agm": 0.65,
    "dpsgd": 0.5,
    "adlm": 0.4,
    "adlm-published": 0.45,
}


def share(cell: Cell, measure: str, attack: str, size: float) -> float:
    """Falls with the size, rises with the budget and a little with each repetition; sound certificates lie far below."""
    value = BASE[cell.method] - 0.5 * size + 0.01 * cell.repetition + 0.05 * float(cell.training.get("epsilon") or 0)
    return max(0.0, value - {"tight": 0.3, "hgm": 0.4, "adaptive": 0.2}.get(measure, 0.0))


def found(name: str) -> Findings:
    figure = REPRODUCTIONS[name]
    return figure.findings(measured(figure.cells(EFFORT), share))


def test_gain_of_certified_accuracy() -> None:
    findings = found("hgm-fig3")
    gain = findings.ours["hgm-pixeldp over pixeldp"]
    assert gain == pytest.approx([10.0, 10.0, 10.0])
    welch = findings.tests[0]
    assert (welch.first, welch.second) == ("HGM-PixelDP, as published", "PixelDP, as published")
    assert welch.difference == pytest.approx(10)
    assert [(test.first_count, test.first.split(", ")[1]) for test in findings.tests] == [
        (3, "as published"),
        (16, "as published"),
        (3, "sound line"),
        (4, "sound line"),
    ]
    assert len(findings.panels) == 5
    (row,) = compare(EXPERIMENTS["hgm-fig3"], findings)
    assert row.difference == pytest.approx(10 - 4.17)
    assert row.sound is not None


@pytest.mark.parametrize("name", ["hgm-fig2", "hgm-fig3", "securesgd-mnist"])
@pytest.mark.parametrize(
    "changes",
    [{"privacy_status": "refuted", "epsilon": None}, {"bound_status": {"published": "refuted"}}],
    ids=["model", "bound"],
)
def test_labels_are_compared_with_the_cells(name: str, changes: dict[str, object]) -> None:
    """Planted: models that promise something else, and sound lines by a bound that nothing is known of."""
    figure = REPRODUCTIONS[name]
    done = [replace(one, numbers={**one.numbers, **changes}) for one in measured(figure.cells(EFFORT), share)]
    with pytest.raises(CheckFailed, match="its label says"):
        figure.findings(done)


def test_sizes_above_the_papers_range_do_not_count() -> None:
    def only_large(cell: Cell, measure: str, attack: str, size: float) -> float:
        return 1.0 if cell.method == "hgm-pixeldp" and size > 0.3 else 0.5

    figure = REPRODUCTIONS["hgm-fig3"]
    gain = figure.findings(measured(figure.cells(EFFORT), only_large)).ours["hgm-pixeldp over pixeldp"]
    assert gain == pytest.approx([0.0, 0.0, 0.0])


def test_secure_sgd_against_what_is_printed() -> None:
    findings = found("securesgd-mnist")
    rows = {row.published.key: row for row in compare(EXPERIMENTS["securesgd-mnist"], findings)}
    low = rows["securesgd conventional epsilon 0.2"]
    assert low.ours is not None
    assert low.ours.mean == pytest.approx(100 * (0.7 - 0.1 + 0.01 + 0.01))
    assert low.difference == pytest.approx(low.ours.mean - 41.64)
    assert low.sound is not None
    assert low.ours.mean - low.sound.mean == pytest.approx(20), "the adaptive attack stands beside the papers'"
    at_input = rows["securesgd-input conventional epsilon 0.2"]
    assert at_input.ours is not None
    assert at_input.ours.mean - low.ours.mean == pytest.approx(10), "the two places of the noise are not mixed up"
    certified = rows["securesgd certified size 0.05"]
    assert certified.ours is not None
    assert certified.sound is not None
    assert certified.ours.mean - certified.sound.mean == pytest.approx(30), "published and sound are not mixed up"
    assert len(rows) == 8
    assert all(row.ours is not None for row in rows.values())


@pytest.mark.parametrize("name", ["hgm-fig3", "hgm-fig5", "securesgd-mnist"])
def test_titles_and_names_of_axes_stay_in_the_picture_and_apart(name: str, tmp_path: Path) -> None:
    """Planted: a title that is longer than its panel, as securesgd-mnist once had one."""
    findings, figure = found(name), REPRODUCTIONS[name]
    write_picture(lambda: figure_of(figure, findings, "a caption"), tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert all(words in drawn for words in ("a caption", *(panel.title for panel in findings.panels)))
    page = markdown(EXPERIMENTS[name], findings, "a caption", "a command")
    assert all(f"| {number.what} | {number.value:g} |" in page for number in EXPERIMENTS[name].published)
    assert too_long(figure_of(figure, findings, "a caption")) == []
    first, second, *others = findings.panels
    planted = replace(second, title="Secure-SGD, noise at the input: accuracy, under all attacks of size 0.2")
    assert planted.title in too_long(figure_of(figure, replace(findings, panels=(first, planted, *others)), "a caption"))


def test_a_cropped_panel_hides_only_zeros() -> None:
    falling = Line("a", "sound", 0, (0.0, 0.1, 0.2, 0.3, 0.6), ((9.0, 8.0), (1.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)))
    staying = Line("b", "paper", 1, (0.0, 0.6), ((9.0, 9.0), (1.0, 0.0)))
    assert Panel("", "", (falling,), cropped=True).end == pytest.approx(0.12)
    assert Panel("", "", (falling,)).end is None
    assert Panel("", "", (falling, staying), cropped=True).end is None, "one repetition above 0 is enough to show it"


def test_a_missing_model_is_named() -> None:
    figure = REPRODUCTIONS["hgm-fig3"]
    only_one = [cell for cell in figure.cells(EFFORT) if cell.method == "pixeldp"]
    with pytest.raises(DataError, match="not measured"):
        figure.findings(measured(only_one, share))


IN_DOCS = Path(__file__).resolve().parents[2] / "docs" / "images" / "noise-calibration.svg"


def test_lines_cover_the_range_and_say_the_truth() -> None:
    classic, beyond, broken, paper, ours = sigma_curves.curves()
    assert max(classic.epsilons) <= 1 < max(beyond.epsilons) < 8.42 < broken.epsilons[1]
    for curve in (classic, beyond, paper, ours):
        assert all(
            gaussian_delta(epsilon, sigma) <= sigma_curves.DELTA
            for epsilon, sigma in zip(curve.epsilons, curve.sigmas, strict=True)
        )
    costs = [gaussian_delta(epsilon, sigma) for epsilon, sigma in zip(broken.epsilons, broken.sigmas, strict=True)]
    assert all(cost > sigma_curves.DELTA for cost in costs[1:])  # the first point joins it to the piece before
    assert paper.epsilons == ours.epsilons == sigma_curves.EPSILONS
    assert all(less < more for less, more in zip(ours.sigmas, paper.sigmas, strict=True))


def test_the_command_makes_the_picture_of_the_docs(tmp_path: Path) -> None:
    made = reproduce("hgm-fig1", tmp_path)
    text = (made.folder / PICTURE).read_text()
    assert text == IN_DOCS.read_text(), "copy the new figure.svg to docs/images/noise-calibration.svg"
    line = made.results["panels"][0]["lines"][4]
    at_one = min(line["points"], key=lambda point: abs(point["x"] - 1))
    assert at_one["mean"] == pytest.approx(sigma_curves.analytic_sigma(at_one["x"]), rel=1e-12)
    assert made.results["command"] == "twinproof reproduce hgm-fig1"


QUICK = Options(seeds=1, limit=6, epochs=0.4, quick=True, device="cpu")
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
    (cell,) = cells_of("stobatch-published", MNIST, QUICK, epsilon=1.0)
    store = CellStore(tmp_path_factory.mktemp("cells"))
    (one,) = make_cells([cell], store, QUICK)
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
    assert read[PUBLISHED] == pytest.approx(PSI * composition_radius(low, high, drawn), abs=2e-6)
    # Rounding the layer to the grid takes a little of the single pass, where the input alone is not the cheaper place.
    assert np.all(read[TIGHT] <= single_pass_radius(low, high, drawn) + 1e-9)
    assert np.all(read[TIGHT] >= read[COMPOSITION])
    assert read[PUBLISHED][-1] == pytest.approx(2 * read[COMPOSITION][-1], abs=4e-6)
    assert read[COMPOSITION][-1] > 0
