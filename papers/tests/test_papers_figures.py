"""What the figures say of cells whose numbers are known: gains with the right sign, tests, panels, pictures and tables."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from crowded_text import too_long
from synthetic_cells import measured
from twinproof.errors import CheckFailed, DataError
from twinproof_papers.catalogue.experiments import EXPERIMENTS
from twinproof_papers.cell import Cell
from twinproof_papers.comparison import compare, markdown
from twinproof_papers.drawing import write_picture
from twinproof_papers.findings import Findings, Line, Panel
from twinproof_papers.options import Options
from twinproof_papers.reproduce import REPRODUCTIONS

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


def test_gains_of_private_methods() -> None:
    findings = found("hgm-fig5")
    assert findings.ours["securesgd over securesgd-agm"] == pytest.approx([5.0] * 3)
    assert findings.ours["securesgd over dpsgd"] == pytest.approx([20.0] * 3)
    assert findings.ours["securesgd rise"] == pytest.approx([9.0] * 3)
    assert len(findings.panels) == 8
    others = ("Secure-SGD, AGM", "DPSGD", "AdLM", "AdLM, as published (no privacy)")
    assert {test.second for test in findings.tests} == {f"{other}, size {size}" for other in others for size in ("0.1", "0.2")}
    assert all(test.difference > 0 for test in findings.tests)


@pytest.mark.parametrize("name", ["hgm-fig4", "hgm-fig5"])
def test_adlm_stands_in_both_figures(name: str) -> None:
    findings = found(name)
    assert findings.ours["securesgd over adlm"] == pytest.approx([30.0] * 3)
    assert findings.ours["securesgd over adlm-published"] == pytest.approx([25.0] * 3)
    labels = [line.label for line in findings.panels[0].lines]
    assert labels[-2:] == ["AdLM", "AdLM, as published (no privacy)"]
    assert [line.kind for line in findings.panels[0].lines] == ["plain"] * 4 + ["paper"]


def test_nothing_is_compared_with_a_number_that_is_not_printed() -> None:
    """The paper's Figure 5 has no AdLM."""
    assert not any("adlm" in number.key for number in EXPERIMENTS["hgm-fig5"].published)
    assert {number.key for number in EXPERIMENTS["hgm-fig4"].published} >= {
        "securesgd over adlm",
        "securesgd over adlm-published",
    }


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


@pytest.mark.parametrize("name", ["hgm-fig3", "hgm-fig4", "hgm-fig5", "securesgd-mnist"])
def test_pictures_and_pages(name: str, tmp_path: Path) -> None:
    findings, figure = found(name), REPRODUCTIONS[name]
    write_picture(lambda: figure.figure(findings, "a caption"), tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert "a caption" in drawn
    for panel in findings.panels:
        assert panel.title in drawn
        json.dumps(panel.as_dict(), allow_nan=False)
    page = markdown(EXPERIMENTS[name], findings, "a caption", "a command")
    assert all(f"| {number.what} | {number.value:g} |" in page for number in EXPERIMENTS[name].published)


@pytest.mark.parametrize("name", ["hgm-fig3", "hgm-fig4", "hgm-fig5", "securesgd-mnist"])
def test_titles_and_names_of_axes_stay_in_the_picture_and_apart(name: str) -> None:
    """Planted: a title that is longer than its panel, as securesgd-mnist once had one."""
    findings, figure = found(name), REPRODUCTIONS[name]
    assert too_long(figure.figure(findings, "a caption")) == []
    first, second, *others = findings.panels
    planted = replace(second, title="Secure-SGD, noise at the input: accuracy, under all attacks of size 0.2")
    assert planted.title in too_long(figure.figure(replace(findings, panels=(first, planted, *others)), "a caption"))


def test_bands_are_the_intervals_over_repetitions() -> None:
    line = found("hgm-fig5").panels[0].lines[0]
    estimate = line.estimates[0]
    assert estimate.repetitions == 3
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.high - estimate.low == pytest.approx(2 * 4.302653 * 1.0 / 3**0.5, rel=1e-5)


def test_a_cropped_panel_hides_only_zeros() -> None:
    falling = Line("a", "sound", 0, (0.0, 0.1, 0.2, 0.3, 0.6), ((9.0, 8.0), (1.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)))
    staying = Line("b", "paper", 1, (0.0, 0.6), ((9.0, 9.0), (1.0, 0.0)))
    assert Panel("", "", (falling,), cropped=True).end == pytest.approx(0.12)
    assert Panel("", "", (falling,)).end is None
    assert Panel("", "", (falling, staying), cropped=True).end is None, "one repetition above 0 is enough to show it"


def test_a_line_with_gaps_is_refused() -> None:
    with pytest.raises(DataError, match="gaps"):
        Line("a", "plain", 0, (1.0, 2.0), ((1.0, 2.0), (1.0,)))


def test_a_missing_model_is_named() -> None:
    figure = REPRODUCTIONS["hgm-fig3"]
    only_one = [cell for cell in figure.cells(EFFORT) if cell.method == "pixeldp"]
    with pytest.raises(DataError, match="not measured"):
        figure.findings(measured(only_one, share))
