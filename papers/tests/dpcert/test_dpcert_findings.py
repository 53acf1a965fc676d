"""What tables and figures say of cells whose numbers are known: the right cell in the right place, with the right sign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic_smoothing import certified, falling

from twinproof.errors import DataError
from twinproof_papers import making as measuring
from twinproof_papers.catalogue import EXPERIMENTS
from twinproof_papers.comparison import compare, estimate_text, markdown
from twinproof_papers.dpcert.curves import CertifiedCurves, binned
from twinproof_papers.dpcert.methods import (
    METHODS,
    MNIST,
    PUBLISHED_METHODS,
    Model,
    accuracy,
    cells_of,
    certified_at,
    mean_radius,
    repetitions,
    values,
)
from twinproof_papers.drawing import write_picture
from twinproof_papers.experiment import Options
from twinproof_papers.findings import Findings, over_repetitions
from twinproof_papers.reproduce import PAGE, PICTURE, REPRODUCTIONS, Selectable, figure_of, reproduce
from twinproof_papers.results_file import FILE as RESULTS

EFFORT = Options(seeds=3)
# One of each kind of picture.
NAMES = ("dpcert-table2", "dpcert-table3", "dpcert-fig4", "dpcert-fig6", "dpcert-fig15")


def found(name: str, options: Options = EFFORT) -> Findings:
    made = REPRODUCTIONS[name]
    return made.findings(certified(made.cells(options), falling))


def test_every_number_of_table_2_but_those_of_cifar10_is_compared() -> None:
    rows = compare(EXPERIMENTS["dpcert-table2"], found("dpcert-table2"))
    for row in rows:
        assert (row.ours is None) == row.published.key.startswith("cifar10")
    by_key = {row.published.key: row for row in rows}
    accurate = by_key["mnist dp-gaussian sigma 0.5 accuracy"]
    assert accurate.ours is not None
    assert accurate.ours.mean == pytest.approx(73.0)
    assert accurate.difference == pytest.approx(73.0 - 97.74)
    radius = by_key["fashion-mnist psac sigma 1 average certified radius"]
    assert radius.ours is not None
    assert radius.ours.mean == pytest.approx(2 * 0.56), "in radii, not in per cent"
    certain = by_key["mnist dpsgd sigma 1 certified at 0.25"]
    assert certain.ours is not None
    assert certain.ours.mean == pytest.approx(100 * (0.53 - 0.1 - 0.075)), "the baseline's certificates at this very sigma"


def test_the_page_of_table_2_has_its_rows_in_the_papers_order() -> None:
    findings = found("dpcert-table2")
    page = markdown(EXPERIMENTS["dpcert-table2"], findings, "a caption", "a command")
    mnist = findings.tables[0]
    labels = [METHODS[method.name].label for method in PUBLISHED_METHODS]
    assert [row[1] for row in mnist.rows[: len(labels)]] == labels
    assert mnist.title == "mnist"
    gaussian = mnist.rows[labels.index("DP-Gaussian")]
    assert gaussian[0] == "0.25"
    assert gaussian[2].startswith("73.00 (")
    assert (gaussian[3], gaussian[4]) == ("98.13", "-25.13")
    assert gaussian[6] == "0.735"
    assert f"| {' | '.join(gaussian)} |" in page
    assert "CIFAR-10 is not here" in page
    assert "cifar10, " not in page, "the plain list gives way to the tables"


def test_rows_that_were_not_made_are_left_open() -> None:
    made = REPRODUCTIONS["dpcert-table2"]
    assert isinstance(made, Selectable)
    some = made.only(("dp-gaussian", "dpsgd"))
    cells = some.cells(EFFORT)
    assert {cell.method for cell in cells} == {"dpsgd", "dp-gaussian"}
    findings = some.findings(certified(cells, falling))
    whole = found("dpcert-table2")
    for part, full in zip(findings.tables[:2], whole.tables[:2], strict=True):
        for row, other in zip(part.rows, full.rows, strict=True):
            here = row[1] in ("DPSGD", "DP-Gaussian")
            assert row == other if here else row[2] == "-" == row[4]
            assert row[3] == other[3], "what is printed stands there all the same"
    assert [line.label for line in findings.panels[0].lines] == ["DPSGD", "DP-Gaussian"]
    assert {row[4:] for row in findings.tables[2].rows} == {("-", "-", "-", "-")}
    assert [row[0] for row in findings.tables[3].rows] == ["DPSGD", "DP-Gaussian"]
    assert all(row.ours is None or "dp" in row.published.key for row in compare(EXPERIMENTS["dpcert-table2"], findings))


def test_curves_are_those_of_their_own_method_data_and_sigma() -> None:
    for panel in found("dpcert-fig7").panels:
        source, sigma = panel.title.split(", sigma ")
        for line in panel.lines:
            (method,) = (method for method in METHODS.values() if method.label == line.label)
            (cell,) = cells_of(method.name, MNIST, Options(seeds=1), sigma=float(sigma))
            cell.training["data"]["source"] = source
            assert line.samples[5][0] == pytest.approx(100 * falling(cell, "certified", float(sigma), line.places[5]))


@pytest.mark.parametrize("name", ["dpcert-table2", "dpcert-fig8", "dpcert-fig9"])
def test_what_table_2_prints_lies_over_its_own_line(name: str) -> None:
    published = {number.key: number.value for number in EXPERIMENTS["dpcert-table2"].published}
    for panel in found(name).panels:
        source, sigma = panel.title.split(",")[0], panel.title.split("sigma ")[1]
        shown = {panel.lines[line.colour].label: line for line in panel.printed}
        names = {"dpcert-fig8": ["DP-Gaussian", "DP-SmoothAdv"], "dpcert-fig9": ["K = 2"]}
        assert list(shown) == names.get(name, [method.label for method in PUBLISHED_METHODS])
        for label, line in shown.items():
            wanted = "DP-Gaussian" if label == "K = 2" else label
            (method,) = (method for method in PUBLISHED_METHODS if method.label == wanted)
            assert line.places == (0.25,)
            assert line.samples == ((published[f"{source} {method.name} sigma {sigma} certified at 0.25"],),)


def test_figures_without_printed_numbers_tell_theirs_in_a_table() -> None:
    """Each line of Figures 4, 8 and 9 by its own cells; what never saw noise stands once under FGSM."""
    for name in ("dpcert-fig4", "dpcert-fig9"):
        (table,) = found(name).tables
        done = certified(REPRODUCTIONS[name].cells(EFFORT), falling)
        lines = {(source, f"{sigma:g}", label) for source, sigma, label, *_ in _lines_of(name)}
        assert {row[:3] for row in table.rows} == lines
        assert len(table.rows) == len(lines)
        for source, sigma, label, model in _lines_of(name):
            (row,) = (row for row in table.rows if row[:3] == (source, f"{sigma:g}", label))
            radius, share = (
                over_repetitions(values(done, model, read)) for read in (mean_radius(sigma), certified_at(sigma, 0.25))
            )
            assert row[3:] == (estimate_text(radius, "radius"), estimate_text(share))
    assert found("dpcert-fig7").tables == (), "Table 2 has them"


def _lines_of(name: str) -> list[tuple[str, float, str, Model]]:
    made = REPRODUCTIONS[name]
    assert isinstance(made, CertifiedCurves)
    return [
        (setup.data, sigma, curve.label, Model(curve.method, setup.data, sigma, curve.settings))
        for setup in made.setups
        for group in made.groups
        for sigma in made.sigmas
        for curve in group.curves
    ]


def test_each_image_is_in_one_bin_of_radii() -> None:
    """Planted: bins that overlap by one step, whose shares add up to more than everything."""
    made = REPRODUCTIONS["dpcert-fig15"]
    done = certified(made.cells(Options(seeds=1)), falling)
    (panel,) = made.findings(done).panels
    for line in panel.lines:
        assert sum(sample[0] for sample in line.samples) == pytest.approx(100)
        assert line.places[:3] == pytest.approx((-0.1, 0.0, 0.1))
    places = [place for place in binned(0.5) if place >= 0]
    at = {place: certified_at(0.5, place)(done[0]) for place in places}
    planted = sum(at[low] - at[high] for low, high in zip(places, places[2:], strict=False)) + at[places[-1]]
    assert planted + (100 - at[0.0]) > 100 + 1


def test_repetitions_are_never_mixed() -> None:
    """Planted: two numbers of copies under one name, which a search by method alone would average."""
    cells = [
        cell for copies in (2, 4) for cell in cells_of("dp-gaussian", MNIST, EFFORT, sigma=0.5, changes={"copies": copies})
    ]
    done = certified(cells, lambda cell, *_: float(cell.training["copies"]) / 10 + cell.repetition / 100)
    with pytest.raises(DataError, match="or several were"):
        repetitions(done, Model("dp-gaussian", "mnist", 0.5))
    with pytest.raises(DataError, match="not measured"):
        repetitions(done, Model("dp-gaussian", "mnist", 0.25, {"copies": 4}))
    with pytest.raises(DataError, match="not measured"):
        repetitions(done, Model("dp-gaussian", "fashion-mnist", 0.5, {"copies": 4}))
    assert values(done[::-1], Model("dp-gaussian", "mnist", 0.5, {"copies": 4}), accuracy) == pytest.approx((40, 41, 42))


@pytest.mark.parametrize("name", NAMES)
def test_pictures_and_pages(name: str, tmp_path: Path) -> None:
    findings, made = found(name), REPRODUCTIONS[name]
    write_picture(lambda: figure_of(made, findings, "a caption"), tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert "a caption" in drawn
    for panel in findings.panels:
        assert panel.title in drawn
        json.dumps(panel.as_dict(), allow_nan=False)
        assert all(line.label in drawn for line in panel.lines)
    page = markdown(EXPERIMENTS[name], findings, "a caption", "a command")
    assert all(note in page for note in findings.notes)


QUICK = Options(seeds=1, limit=6, epochs=1, quick=True, device="cpu")


def _refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("nothing was to be trained")


@pytest.mark.slow
def test_table_2_and_the_figures_of_its_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = reproduce("dpcert-table2", tmp_path, QUICK)
    record = json.loads((tmp_path / "dpcert-table2" / RESULTS).read_text())
    assert len(record["cells"]) == 3 + 3 * 6
    for cell in record["cells"]:
        private = cell["method"] not in ("regular", "gaussian")
        assert cell["numbers"]["privacy_status"] == ("proven" if private else "none")
        assert not private or 0 < cell["numbers"]["epsilon"] <= 3
        assert all(0 <= sigma["acr"] <= sigma["largest_radius"] for sigma in cell["numbers"]["smoothed"].values())
    assert [table["title"] for table in record["tables"]] == [table.title for table in made.findings.tables]
    monkeypatch.setattr(measuring, "measure", _refuse)
    for name in ("dpcert-table2", "dpcert-fig7", "dpcert-fig15", "dpcert-fig16"):
        again = reproduce(name, tmp_path, QUICK)
        assert (again.folder / PICTURE).is_file()
        assert (again.folder / PAGE).is_file()
