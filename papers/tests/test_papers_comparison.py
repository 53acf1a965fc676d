"""Differences on a page are those of the numbers beside them, and never larger than the true ones where radii are compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

from twinproof_papers.catalogue.dpcert import table_2_key
from twinproof_papers.comparison import difference_text, estimate_text, markdown, published_text
from twinproof_papers.dpcert.methods import HOUSE
from twinproof_papers.dpcert.tables import against_the_best
from twinproof_papers.experiment import Experiment, Paper, Published
from twinproof_papers.findings import Estimate, Findings

RESULTS = Path(__file__).parents[2] / "results" / "dpcert-table2.json"


def one(mean: float) -> Estimate:
    return Estimate(mean, None, None, 1)


@pytest.mark.parametrize(
    ("mean", "published", "unit", "shown", "text"),
    [
        (0.738678, 0.735, "radius", "0.738", "+0.003"),  # to the nearest it is 0.004
        (0.5817, 0.606, "radius", "0.581", "-0.025"),  # to the nearest it is 0.024: less behind than what is shown
        (0.7359, 0.7359, "radius", "0.735", "-0.001"),  # a paper with more digits than we show
        (0.735, 0.735, "radius", "0.735", "+0.000"),
        (95.696, 95.7, "%", "95.70", "+0.00"),
        (97.756, 98.13, "%", "97.76", "-0.37"),
        (14.9, 4.17, "points", "14.90", "+10.73"),
    ],
)
def test_a_difference_is_that_of_the_numbers_shown(mean: float, published: float, unit: str, shown: str, text: str) -> None:
    assert estimate_text(one(mean), unit) == shown
    assert difference_text(one(mean), published, unit) == text


@pytest.mark.parametrize(
    ("low", "high", "unit", "text"),
    [
        (-68.29, 147.08, "%", "39.40 (0.00 to 100.00)"),
        (38.0, 41.0, "%", "39.40 (38.00 to 41.00)"),
        (-0.641, 147.0, "radius", "39.400 (0.000 to 147.000)"),
        (-68.29, 147.08, "points", "39.40 (-68.29 to 100.00)"),
        (-106.46, 91.39, "points", "39.40 (-100.00 to 91.39)"),
    ],
)
def test_an_interval_is_cut_to_what_the_number_can_be(low: float, high: float, unit: str, text: str) -> None:
    assert estimate_text(Estimate(39.4, low, high, 2), unit) == text


def test_what_is_missing_has_no_difference() -> None:
    assert difference_text(None, 0.5) == difference_text(one(0.5), None) == published_text(None) == "-"


def nearest(ours: Estimate | None, published: float | None, unit: str = "%") -> str:
    """Planted: the exact difference, to the nearest digit."""
    if ours is None or published is None:
        return "-"
    return f"{ours.mean - published:+.{3 if unit == 'radius' else 2}f}"


@pytest.mark.parametrize(("rule", "agree"), [(difference_text, True), (nearest, False)])
def test_whoever_subtracts_finds_the_same(rule: Callable[..., str], agree: bool) -> None:
    """Every hundredth of a thousandth between two printed values."""
    wrong = 0
    for number in range(100):
        mean = 0.735 + number / 100_000
        shown = Decimal(estimate_text(one(mean), "radius")) - Decimal(published_text(0.735))
        wrong += Decimal(rule(one(mean), 0.735, "radius")) != shown
    assert (wrong == 0) is agree


def page(mean: float) -> str:
    number = Published("key", "mean radius", 0.735, "Table 2", "radius")
    experiment = Experiment("name", Paper.DPCERT, "Table", "shows", (number,))
    return markdown(experiment, Findings((), ours={"key": (mean,)}), "caption", "command")


def test_a_page_lists_it_that_way() -> None:
    assert "| mean radius | 0.735 | 0.738 | +0.003 | radius |" in page(0.738678)


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


def test_the_house_recipe_is_compared_that_way() -> None:
    measure = "average certified radius"
    ours = {table_2_key("mnist", HOUSE, 0.25, measure): (0.768678,)}
    (row,) = (row for row in against_the_best(("mnist",), ours).rows if row[1:3] == ("0.25", measure))
    assert row[3:6] == ("0.742 (DP-SmoothAdv)", "0.768", "+0.026")
