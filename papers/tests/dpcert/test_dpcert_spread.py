"""Rows of Table 2 against the paper and against themselves: counted as they are shown, paired within a cell alone."""

from __future__ import annotations

import pytest

from twinproof_papers.catalogue.dpcert import table_2_key
from twinproof_papers.dpcert.tables import spread_tables

RADIUS, CERTIFIED = "average certified radius", "certified at 0.25"
# Printed for DP-Stability on MNIST at 0.25: 0.738 and 95.9.
METHOD, SIGMA = "dp-stability", 0.25


def row(ours: dict[str, tuple[float, ...]], method: str = METHOD) -> tuple[str, ...]:
    ((only,),) = (table.rows for table in spread_tables(["mnist"], [method], ours))
    return only


def at(measure: str, *trainings: float, sigma: float = SIGMA, method: str = METHOD) -> dict[str, tuple[float, ...]]:
    return {table_2_key("mnist", method, sigma, measure): trainings}


@pytest.mark.parametrize(
    ("trainings", "shown"),
    [
        ((95.9, 95.9, 95.9), ("1 of 1", "0", "0")),
        ((96.0, 95.8, 96.0), ("1 of 1", "0", "0")),
        ((95.8, 95.85, 95.95), ("0 of 1", "1", "0")),  # 95.8666, the interval reaches 96.05
        ((95.80, 95.80, 95.81), ("0 of 1", "0", "1")),
        ((95.899, 95.899, 95.899), ("1 of 1", "0", "0")),  # shown as 95.90
    ],
)
def test_cells_are_counted_as_they_are_shown(trainings: tuple[float, ...], shown: tuple[str, ...]) -> None:
    assert row(at(CERTIFIED, *trainings))[1:4] == shown


def test_a_mean_radius_that_is_shown_below_the_paper_counts_as_below() -> None:
    """Planted: means rounded to the nearest, by which 0.7377 would be the printed 0.738."""
    assert round(0.7377, 3) == 0.738
    assert row(at(RADIUS, 0.7377, 0.7377))[1:4] == ("0 of 1", "0", "1")


def test_both_certified_measures_count_and_clean_accuracy_does_not() -> None:
    ours = at(RADIUS, 0.74, 0.74) | at(CERTIFIED, 90.0, 90.0) | at("accuracy", 0.0, 0.0)
    assert row(ours)[1:4] == ("1 of 2", "0", "1")


def test_trainings_are_paired_within_a_cell() -> None:
    """Planted: differences over all numbers of a row, which are those between sigmas."""
    ours = at(CERTIFIED, 90.0, 91.0, 93.0) | at(CERTIFIED, 50.0, 50.5, 51.0, sigma=1.0)
    assert row(ours)[6:] == ("1.00", "3.00"), "1, 2, 3 and 0.5, 0.5, 1"
    planted = [abs(one - other) for one in (90.0, 91.0, 93.0) for other in (50.0, 50.5, 51.0)]
    assert min(planted) > 3


def test_rows_of_ours_have_no_paper_to_be_above() -> None:
    ours = at(RADIUS, 0.76, 0.77, method="twinproof")
    assert row(ours, "twinproof") == ("twinproof (house recipe)", "-", "-", "-", "0.0100", "0.0100", "-", "-")


def test_one_training_has_nothing_to_differ_from() -> None:
    assert spread_tables(["mnist"], [METHOD], at(CERTIFIED, 95.0)) == ()
