"""Means, intervals and t-tests; tables beside published numbers; pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from scipy import stats

from synthetic_cells import measured
from twinproof.errors import ConfigError, DataError
from twinproof_papers.catalogue import EXPERIMENTS
from twinproof_papers.cell import Cell
from twinproof_papers.comparison import difference_text, estimate_text, markdown, published_text
from twinproof_papers.drawing import PALETTE, draw_panels, y_range
from twinproof_papers.experiment import Options
from twinproof_papers.findings import (
    Estimate,
    Line,
    Panel,
    Table,
    over_repetitions,
    paired_test,
    welch_test,
)
from twinproof_papers.reproduce import REPRODUCTIONS

REPETITIONS, IMAGES, TRIALS = 3, 1000, 2000
# Trainings differ by 3 points; a measurement on 1,000 images errs by less than 1.3.
TRUE_MEAN, BETWEEN = 0.8, 0.03


def _trials() -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    generator = np.random.default_rng(5)
    accuracies = np.clip(generator.normal(TRUE_MEAN, BETWEEN, (TRIALS, REPETITIONS)), 0, 1)
    return list(generator.binomial(IMAGES, accuracies) / IMAGES)


def _interval_over_images(values: list[float]) -> tuple[float, float]:
    """The planted bug: every image of every training taken for an independent repetition."""
    mean, count = fmean(values), IMAGES * len(values)
    width = float(stats.t.ppf(0.975, count - 1)) * math.sqrt(mean * (1 - mean) / count)
    return mean - width, mean + width


def test_intervals_over_repetitions_cover_and_over_images_do_not() -> None:
    over_seeds = over_images = 0
    for trial in _trials():
        found = over_repetitions(trial.tolist())
        assert found.low is not None
        assert found.high is not None
        over_seeds += found.low <= TRUE_MEAN <= found.high
        low, high = _interval_over_images(trial.tolist())
        over_images += low <= TRUE_MEAN <= high
    # 95 % of 2,000 with a standard error of 0.5 %: five of them are a false alarm below 1e-6.
    assert 0.95 - 5 * 0.0049 < over_seeds / TRIALS < 0.95 + 5 * 0.0049
    assert over_images / TRIALS < 0.75, "an interval over images is far too narrow"


def test_one_repetition_has_no_interval_and_none_is_an_error() -> None:
    assert over_repetitions([0.5]) == Estimate(0.5, None, None, 1)
    with pytest.raises(DataError, match="at least one repetition"):
        over_repetitions([])
    with pytest.raises(ConfigError, match="confidence"):
        over_repetitions([0.5, 0.6], 1.0)


LEFT, RIGHT = [82.0, 84.5, 83.0], [70.0, 75.0, 71.0]


@pytest.mark.parametrize("test", [welch_test, paired_test])
def test_swapped_groups_are_told_apart(test: object) -> None:
    """Planted: the same numbers with the groups exchanged under the same names. Only p stays, and p alone says nothing."""
    assert callable(test)
    right, swapped = test("a", "b", LEFT, RIGHT), test("a", "b", RIGHT, LEFT)
    assert right.p == pytest.approx(swapped.p)
    assert right.difference > 0 > swapped.difference
    assert right.statistic > 0 > swapped.statistic


def test_what_allows_no_test_gives_none() -> None:
    assert welch_test("a", "b", [1.0], [2.0, 3.0]).p is None
    assert welch_test("a", "b", [1.0, 1.0], [2.0, 2.0]).p is None
    assert paired_test("a", "b", [1.0, 2.0], [2.0, 3.0]).p is None
    with pytest.raises(DataError, match="two groups"):
        welch_test("a", "b", [], [1.0])
    with pytest.raises(DataError, match="needs pairs"):
        paired_test("a", "b", [1.0], [1.0, 2.0])


RESULTS = Path(__file__).parents[2] / "results" / "dpcert-table2.json"


def one(mean: float) -> Estimate:
    return Estimate(mean, None, None, 1)


@pytest.mark.parametrize(
    ("mean", "published", "unit", "shown", "text"),
    [
        (0.738678, 0.735, "radius", "0.738", "+0.003"),  # to the nearest it is 0.004
        (0.5817, 0.606, "radius", "0.581", "-0.025"),  # to the nearest it is 0.024: less behind than what is shown
        (0.7359, 0.7359, "radius", "0.735", "-0.001"),  # a paper with more digits than we show
        (95.696, 95.7, "%", "95.70", "+0.00"),
        (97.756, 98.13, "%", "97.76", "-0.37"),
    ],
)
def test_a_difference_is_that_of_the_numbers_shown(mean: float, published: float, unit: str, shown: str, text: str) -> None:
    assert estimate_text(one(mean), unit) == shown
    assert difference_text(one(mean), published, unit) == text


@pytest.mark.parametrize(
    ("low", "high", "unit", "text"),
    [
        (-68.29, 147.08, "%", "39.40 (0.00 to 100.00)"),
        (-0.641, 147.0, "radius", "39.400 (0.000 to 147.000)"),
        (-68.29, 147.08, "points", "39.40 (-68.29 to 100.00)"),
    ],
)
def test_an_interval_is_cut_to_what_the_number_can_be(low: float, high: float, unit: str, text: str) -> None:
    assert estimate_text(Estimate(39.4, low, high, 2), unit) == text


def nearest(ours: Estimate | None, published: float | None, unit: str = "%") -> str:
    """Planted: the exact difference, to the nearest digit."""
    if ours is None or published is None:
        return "-"
    return f"{ours.mean - published:+.{3 if unit == 'radius' else 2}f}"


@pytest.mark.parametrize(("rule", "agree"), [(difference_text, True), (nearest, False)])
def test_every_row_of_the_committed_table_can_be_checked_by_hand(rule: Callable[..., str], agree: bool) -> None:
    rows = json.loads(RESULTS.read_text())["comparison"]
    made = [row for row in rows if row["ours"] is not None]
    assert len(made) == 126, "seven methods, two data sets, three sigmas, three measures"
    wrong = 0
    for row in made:
        ours, value, unit = one(row["ours"]["mean"]), row["published"]["value"], row["published"]["unit"]
        shown = Decimal(estimate_text(ours, unit)) - Decimal(published_text(value))
        wrong += Decimal(rule(ours, value, unit)) != shown
    assert (wrong == 0) is agree


BASE = {"securesgd": 0.5, "securesgd-agm": 0.4, "dpsgd": 0.3, "adlm": 0.35, "adlm-published": 0.25}


def share(cell: Cell, measure: str, attack: str, size: float) -> float:
    """FGSM is weaker than the others; more budget helps, size hurts, and seeing the noise hurts more."""
    value = BASE[cell.method] + 0.04 * (attack == "fgsm") - 0.1 * size + 0.1 * float(cell.training["epsilon"])
    return value - (0.2 if measure == "adaptive" else 0.0)


def level(seeds: int) -> Table:
    figure = REPRODUCTIONS["hgm-fig5"]
    (table,) = figure.findings(measured(figure.cells(Options(seeds=seeds)), share)).beside
    return table


def test_numbers_are_those_of_the_method_the_measure_and_the_budget() -> None:
    rows = {row[:2]: row[2:] for row in level(1).rows}
    assert rows["Secure-SGD", "no attack"] == ("52.00", "55.00", "60.00", "70.00")
    assert rows["Secure-SGD, AGM", "size 0.1: mean over the papers' attacks"] == ("42.00", "45.00", "50.00", "60.00")
    assert rows["DPSGD", "size 0.2: mean over the papers' attacks"] == ("31.00", "34.00", "39.00", "49.00")
    assert rows["DPSGD", "size 0.2: PGD that sees the noise"] == ("10.00", "13.00", "18.00", "28.00")


def test_trainings_have_an_interval_and_the_page_has_the_list_and_the_table() -> None:
    figure = REPRODUCTIONS["hgm-fig5"]
    findings = figure.findings(measured(figure.cells(Options(seeds=2)), share))
    page = markdown(EXPERIMENTS["hgm-fig5"], findings, "a caption", "a command")
    assert "| securesgd over dpsgd, conventional accuracy | 10.74 | 20.00 (20.00 to 20.00) |" in page
    assert "| DPSGD | no attack | 32.00 (32.00 to 32.00) |" in page
    assert page.index("securesgd over dpsgd") < page.index("## Accuracy (%)") < page.index("two-tailed t-test")
    assert "\n\n\n" not in page


PLACES = tuple(step / 20 for step in range(21))


def line(colour: int = 0, *, kind: str = "plain", marked: bool = True, places: tuple[float, ...] = PLACES) -> Line:
    return Line(f"{kind} {colour}", kind, colour, places, tuple((50.0 - 20 * place,) for place in places), marked)


def level_draw(*means: float, spread: float = 0.0) -> Line:
    samples = tuple((mean - spread, mean + spread) for mean in means)
    return Line("a", "plain", 0, tuple(float(place) for place in range(len(means))), samples)


def test_lines_are_told_apart_without_colour() -> None:
    """Planted: lines of the same kind without marks, which differ in hue alone."""

    def looks(marked: bool) -> set[Any]:
        panel = Panel("", "", tuple(line(number, marked=marked) for number in range(len(PALETTE))))
        (axes,) = draw_panels([panel], "", columns=1).axes
        return {(drawn.get_marker(), drawn.get_linestyle()) for drawn in axes.get_lines()}

    assert len(looks(marked=True)) == len(PALETTE)
    assert len(looks(marked=False)) == 1


@pytest.mark.parametrize(
    ("panel", "low", "high"),
    [
        (Panel("", "", (level_draw(3.0, 4.0),)), -2, 102),
        (Panel("", "", (level_draw(0.0, 40.0, spread=500.0),), fitted=True), -1.2, 44.8),
        (Panel("", "", (level_draw(0.0, 0.0),), fitted=True), -0.03, 1.12),
        (Panel("", "", (level_draw(-3.0, -1.0, spread=50.0),), y_label="ln", fitted=True), -3.24, -0.76),
        (Panel("", "", (level_draw(90.0),), fitted=True, printed=(level_draw(80.0),)), 78.8, 91.2),
        (Panel("", "", (Line("a", "plain", 0, (), ()),), fitted=True, y_label="ln"), -2, 102),
    ],
)
def test_axes_are_fitted_to_means_and_not_to_bands(panel: Panel, low: float, high: float) -> None:
    """Planted in the cases: bands of two trainings that are far wider than everything that is to be seen."""
    assert y_range(panel) == pytest.approx((low, high))
