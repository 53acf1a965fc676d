"""What tables and figures say of cells whose numbers are known: the right cell in the right place, with the right sign."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_smoothing import certified, falling

from crowded_text import too_long
from twinproof.errors import ConfigError, DataError
from twinproof_papers.catalogue.experiments import EXPERIMENTS
from twinproof_papers.cell import Cell
from twinproof_papers.comparison import compare, estimate_text, markdown
from twinproof_papers.dpcert.curves import CertifiedCurves, binned
from twinproof_papers.dpcert.methods import (
    METHODS,
    MNIST,
    PUBLISHED_METHODS,
    SIGMAS,
    Model,
    accuracy,
    cells_of,
    certified_at,
    fgsm_at,
    mean_radius,
    repetitions,
    values,
)
from twinproof_papers.drawing import write_picture
from twinproof_papers.findings import Estimate, Findings, Table, over_repetitions, trainings_words
from twinproof_papers.options import Options
from twinproof_papers.reproduce import REPRODUCTIONS, Selectable
from twinproof_papers.smoothing import FGSM_SIZES

EFFORT = Options(seeds=3)
# One of each kind of picture.
NAMES = ("dpcert-table2", "dpcert-table3", "dpcert-fig4", "dpcert-fig6", "dpcert-fig15", "dpcert-fig16", "dpcert-fig17")


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


def test_the_house_recipe_meets_the_best_published_private_row() -> None:
    *_, house, _ = found("dpcert-table2").tables
    assert len(house.rows) == 2 * len(SIGMAS) * 3
    first = next(row for row in house.rows if row[:3] == ("mnist", "0.25", "average certified radius"))
    assert first[3] == "0.742 (DP-SmoothAdv)"
    assert first[5] == f"{0.63 * 1.25 - 0.742:+.3f}"


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


def test_rows_are_chosen_by_name() -> None:
    made = REPRODUCTIONS["dpcert-table2"]
    assert isinstance(made, Selectable)
    with pytest.raises(ConfigError, match="did you mean 'dp-gaussian'"):
        made.only(("dpsgd", "dp-gausian"))
    with pytest.raises(ConfigError, match="no such row"):
        made.only(("dp-gaussian-psac",))


def test_a_quick_look_is_compared_with_nothing() -> None:
    quick = Options(seeds=1, quick=True)
    findings = found("dpcert-table2", quick)
    assert all(row.ours is None for row in compare(EXPERIMENTS["dpcert-table2"], findings))
    assert findings.tables[0].title == "digits"


@pytest.mark.parametrize("name", ["dpcert-table3", "dpcert-table4"])
def test_settings_are_compared_value_by_value(name: str) -> None:
    def by_setting(cell: Cell, measure: str, sigma: float, place: float) -> float:
        return float(cell.training["learning_rate"]) / 10 if name.endswith("3") else float(cell.training["clip_norm"])

    made = REPRODUCTIONS[name]
    rows = compare(EXPERIMENTS[name], made.findings(certified(made.cells(EFFORT), by_setting)))
    for row in rows:
        if row.published.key.startswith("cifar10"):
            assert row.ours is None
        else:
            assert row.ours is not None
            value = float(row.published.key.split()[-1])
            assert row.ours.mean == pytest.approx(10 * value if name.endswith("3") else 100 * value)


@pytest.mark.parametrize("name", [*NAMES, "dpcert-fig8", "dpcert-fig9", "dpcert-fig12"])
def test_titles_and_names_of_axes_stay_in_the_picture_and_apart(name: str) -> None:
    """Planted: a title as long as the data, the sigma and the metric together, which Figure 12 once had."""
    made = REPRODUCTIONS[name]
    findings = found(name)
    assert too_long(made.figure(findings, "a caption")) == []
    *others, last = findings.panels
    planted = replace(last, title="fashion-mnist, sigma 0.25: local Lipschitz constant" * (1 if len(others) > 1 else 2))
    assert planted.title in too_long(made.figure(replace(findings, panels=(*others, planted)), "a caption"))


def test_curves_are_those_of_their_own_method_data_and_sigma() -> None:
    for panel in found("dpcert-fig7").panels:
        source, sigma = panel.title.split(", sigma ")
        for line in panel.lines:
            (method,) = (method for method in METHODS.values() if method.label == line.label)
            (cell,) = cells_of(method.name, MNIST, Options(seeds=1), sigma=float(sigma))
            cell.training["data"]["source"] = source
            assert line.samples[5][0] == pytest.approx(100 * falling(cell, "certified", float(sigma), line.places[5]))


@pytest.mark.parametrize("name", ["dpcert-table2", "dpcert-fig7", "dpcert-fig8", "dpcert-fig9"])
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
    for name in ("dpcert-fig4", "dpcert-fig8", "dpcert-fig9"):
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


def test_what_fgsm_leaves_is_told_for_every_model_once() -> None:
    (table,) = found("dpcert-fig16").tables
    assert len(table.rows) == 2 * (3 + 6 * len(SIGMAS))
    done = certified(REPRODUCTIONS["dpcert-fig16"].cells(EFFORT), falling)
    for source, sigma, label, *shown in table.rows:
        (method,) = (method.name for method in METHODS.values() if method.label == label)
        assert (sigma == "-") is (not METHODS[method].augmented)
        model = Model(method, source, 0.25 if sigma == "-" else float(sigma))
        assert shown == [estimate_text(over_repetitions(values(done, model, fgsm_at(size)))) for size in FGSM_SIZES]


def test_figure_15_tells_whom_noise_leaves_right() -> None:
    (table,) = found("dpcert-fig15").tables
    done = certified(REPRODUCTIONS["dpcert-fig15"].cells(EFFORT), falling)
    for label, wrong, *shown in table.rows:
        (method,) = (method.name for method in METHODS.values() if method.label == label)
        right, *beyond = (
            values(done, Model(method, "mnist", 0.5), certified_at(0.5, radius)) for radius in (0.0, 0.5, 1.0, 1.5)
        )
        assert wrong == estimate_text(over_repetitions([100 - value for value in right]))
        assert shown == [estimate_text(over_repetitions(each)) for each in beyond]


def test_tables_3_and_4_show_what_is_published() -> None:
    first, second = found("dpcert-table3").panels
    assert [line.samples for line in first.printed] == [((97.71,), (98.13,), (97.78,))]
    assert [line.samples for line in second.printed] == [((83.47,), (84.76,), (83.96,))]
    assert found("dpcert-table4", Options(seeds=1, quick=True)).panels[0].printed == ()


@pytest.mark.parametrize(("seeds", "header"), [(1, "accuracy, %"), (3, "accuracy, % (95 % interval)")])
def test_one_training_has_no_interval(seeds: int, header: str) -> None:
    assert found("dpcert-table2", Options(seeds=seeds)).tables[0].header[2] == header
    assert trainings_words(seeds) == (
        "One training, no interval" if seeds == 1 else "Means of 3 trainings with 95 % t-intervals over them"
    )


def test_figure_4_shows_combinations_and_copies() -> None:
    left, right = found("dpcert-fig4").panels
    assert [line.label for line in right.lines] == ["K = 0 (one noisy copy, no original)", *(f"K = {n}" for n in (2, 4, 6, 8))]
    added = ("", " + consistency", " + PSAC")
    assert [line.label for line in left.lines] == [
        f"{base}{more}" for base in ("DP-Gaussian", "DP-SmoothAdv") for more in added
    ]
    assert all("fashion-mnist" in panel.title and "sigma 0.5" in panel.title for panel in (left, right))


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


def test_fgsm_is_read_at_its_size() -> None:
    made = REPRODUCTIONS["dpcert-fig16"]
    panels = made.findings(certified(made.cells(Options(seeds=1)), falling)).panels
    assert len(panels) == 6
    line = next(line for line in panels[0].lines if line.label == "DPSGD")
    assert line.places == (0.0005, 0.01, 0.1, 0.5, 1.0)
    assert [sample[0] for sample in line.samples] == pytest.approx([100 * (0.52 - 0.3 * size) for size in line.places])


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


def test_places_that_were_not_measured_are_refused() -> None:
    with pytest.raises(DataError, match="nothing was measured there"):
        certified_at(0.25, 0.33)
    with pytest.raises(DataError, match="nothing was measured there"):
        fgsm_at(0.2)
    (done,) = certified(cells_of("dp-gaussian", MNIST, Options(seeds=1), sigma=0.5), falling)
    assert mean_radius(0.5)(done) == pytest.approx(0.72 * 1.5)


@pytest.mark.parametrize("name", NAMES)
def test_pictures_and_pages(name: str, tmp_path: Path) -> None:
    findings, made = found(name), REPRODUCTIONS[name]
    write_picture(lambda: made.figure(findings, "a caption"), tmp_path / "figure.svg")
    drawn = (tmp_path / "figure.svg").read_text()
    assert "a caption" in drawn
    for panel in findings.panels:
        assert panel.title in drawn
        json.dumps(panel.as_dict(), allow_nan=False)
        assert all(line.label in drawn for line in panel.lines)
    page = markdown(EXPERIMENTS[name], findings, "a caption", "a command")
    assert all(note in page for note in findings.notes)


@pytest.mark.parametrize(
    ("estimate", "unit", "text"),
    [
        (Estimate(0.7359, 0.7349, 0.7369, 3), "radius", "0.735 (0.734 to 0.737)"),
        (Estimate(0.7359, None, None, 1), "radius", "0.735"),
        (Estimate(97.756, 97.0, 98.0, 3), "%", "97.76 (97.00 to 98.00)"),
    ],
)
def test_mean_radii_are_rounded_down(estimate: Estimate, unit: str, text: str) -> None:
    assert estimate_text(estimate, unit) == text


def test_a_table_with_gaps_is_refused() -> None:
    with pytest.raises(DataError, match="gaps"):
        Table("a", ("one", "two"), (("1",),))
