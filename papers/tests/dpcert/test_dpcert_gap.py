"""The share of what privacy costs that the house recipe wins back: right at its ends, rounded down, open where unknown."""

from __future__ import annotations

import pytest
from synthetic_smoothing import certified

from twinproof_papers.catalogue.dpcert import table_2_key
from twinproof_papers.cell import Cell
from twinproof_papers.dpcert.methods import HOUSE, UPPER_END
from twinproof_papers.dpcert.tables import GAP_NOTE, against_the_best, best_published, share_of_gap
from twinproof_papers.findings import over_repetitions
from twinproof_papers.options import Options
from twinproof_papers.reproduce import REPRODUCTIONS

RADIUS = "average certified radius"


@pytest.mark.parametrize(
    ("source", "sigma", "measure", "wanted"),
    [
        ("mnist", 0.25, RADIUS, ("dp-smoothadv", 0.742)),
        ("mnist", 1.0, RADIUS, ("dp-gaussian", 1.262)),
        ("fashion-mnist", 0.25, "accuracy", ("psac", 86.34)),  # Regular is better, and not private
        ("digits", 0.25, "accuracy", None),
    ],
)
def test_the_best_published_row_is_private(source: str, sigma: float, measure: str, wanted: tuple[str, float] | None) -> None:
    assert best_published(source, sigma, measure) == wanted


@pytest.mark.parametrize(
    ("house", "upper", "best", "share"),
    [(1.0, 2.0, 1.0, 0.0), (2.0, 2.0, 1.0, 100.0), (1.25, 2.0, 1.0, 25.0), (0.5, 2.0, 1.0, -50.0), (3.0, 2.0, 1.0, 200.0)],
)
def test_the_share_is_how_far_the_way_was_gone(house: float, upper: float, best: float, share: float) -> None:
    assert share_of_gap(house, over_repetitions([upper]), best, "%") == pytest.approx(share)


@pytest.mark.parametrize(
    ("upper", "unit", "told"),
    [
        ((1.0,), "%", False),
        ((0.5,), "%", False),
        ((1.49,), "%", False),
        ((1.5,), "%", True),
        ((1.49,), "radius", True),
        ((1.005,), "radius", True),
        ((1.0049,), "radius", False),
        ((2.0, 2.0, 2.1), "%", True),
        ((1.0, 2.0, 3.0), "%", False),  # a mean far above, and an interval that is not
    ],
)
def test_there_is_no_share_of_hardly_a_gap(upper: tuple[float, ...], unit: str, told: bool) -> None:
    assert (share_of_gap(1.5, over_repetitions(upper), 1.0, unit) is not None) is told


def test_a_share_of_almost_nothing_is_not_printed() -> None:
    """Planted: the plain quotient, which made 0.85 points below the published row -4251 % of a gap of 0.02."""
    house, upper, best = 97.4, 98.27, 98.25
    assert 100 * (house - best) / (upper - best) < -4000
    given = {HOUSE: (house,), UPPER_END: (upper,)}
    ours = {table_2_key("mnist", name, 1.0, "accuracy"): values for name, values in given.items()}
    row = next(row for row in against_the_best(["mnist"], ours).rows if row[1:3] == ("1", "accuracy, %"))
    assert row[3:] == ("98.25 (PSAC)", "97.40", "-0.85", "98.27", "-")
    assert "0.5 points or a radius of 0.005" in GAP_NOTE


def _row(house: tuple[float, ...] | None, upper: tuple[float, ...] | None) -> tuple[str, ...]:
    """The row of MNIST's mean radius at 0.25, whose best published one is 0.742."""
    given = {HOUSE: house, UPPER_END: upper}
    ours = {table_2_key("mnist", name, 0.25, RADIUS): values for name, values in given.items() if values is not None}
    table = against_the_best(["mnist"], ours)
    return next(row for row in table.rows if row[1:3] == ("0.25", RADIUS))


@pytest.mark.parametrize(
    ("house", "upper", "shown"),
    [
        ((0.792, 0.792), (0.892, 0.892), "33 %"),  # a third
        ((0.8411,), (0.842,), "99 %"),  # never 100 before it is reached
        ((0.741,), (0.892,), "-1 %"),  # nor 0 when it is below
        ((0.9,), (0.742,), "-"),
        ((0.9,), (0.7,), "-"),
        (None, (0.892,), "-"),
        ((0.8,), None, "-"),
    ],
)
def test_the_share_is_rounded_down(house: tuple[float, ...] | None, upper: tuple[float, ...] | None, shown: str) -> None:
    row = _row(house, upper)
    assert row[-1] == shown
    assert (row[4] == "-", row[6] == "-") == (house is None, upper is None)


def test_planted_rounding_to_nearest_is_caught() -> None:
    """It would claim the whole gap at 0.8419 of 0.842."""
    assert f"{100 * (0.8419 - 0.742) / (0.842 - 0.742):.0f} %" == "100 %"
    assert _row((0.8419,), (0.842,))[-1] == "99 %"


def test_the_row_without_privacy_is_the_one_that_was_measured() -> None:
    """Planted: all rows but one are alike, so that reading another row as the upper end leaves no gap or another one."""

    def value(cell: Cell, measure: str, sigma: float, place: float) -> float:
        level = {HOUSE: 0.95, UPPER_END: 0.99}.get(cell.method, 0.1)
        return level * (3 if measure == "acr" else 1)

    made = REPRODUCTIONS["dpcert-table2"]
    *_, table, _ = made.findings(certified(made.cells(Options(seeds=2)), value)).tables
    row = next(row for row in table.rows if row[:3] == ("fashion-mnist", "1", "accuracy, %"))
    assert (row[4], row[6]) == ("95.00 (95.00 to 95.00)", "99.00 (99.00 to 99.00)")
    assert row[-1] == f"{int(100 * (95 - 86.34) / (99 - 86.34))} %"
