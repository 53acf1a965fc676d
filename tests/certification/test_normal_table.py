"""The table against 60-digit arithmetic: its distance to the rounded normal law is proven small, and measured to be."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, getcontext
from functools import lru_cache

import numpy as np
import pytest
from noise_table_oracle import WORD, cell_error, changed, distance_to, exact_cells

from twinproof.certification.noise_tables import NORMAL_CUT as CUT
from twinproof.certification.noise_tables import NoiseTable, normal_table
from twinproof.certification.noise_tables import normal_distance as distance

STEPS = [64.0, 63.75 * 2, 127.99]


def _density_at_zero() -> Decimal:
    """1 / sqrt(2 pi), pi from Machin's formula."""

    def arctan(inverse: int) -> Decimal:
        x = Decimal(1) / inverse
        return sum(((-1) ** k * x ** (2 * k + 1) / (2 * k + 1) for k in range(50)), Decimal(0))

    return 1 / (2 * 4 * (4 * arctan(5) - arctan(239))).sqrt()


def _tail(x: Decimal) -> Decimal:
    """The probability beyond x >= 0, by the series of the odd double factorials, all of whose terms are positive."""
    term, total, k = x, x, 1
    while term > Decimal("1e-45"):
        term *= x * x / (2 * k + 1)
        total, k = total + term, k + 1
    return Decimal("0.5") - _density_at_zero() * (-x * x / 2).exp() * total


@lru_cache(maxsize=len(STEPS))
def _cells(steps: float) -> tuple[Decimal, ...]:
    return exact_cells(_tail, steps, math.ceil(CUT * steps))


def _distance(table: NoiseTable, steps: float) -> float:
    return distance_to(table, _cells(steps))


@pytest.mark.parametrize("steps", STEPS)
def test_the_distance_to_the_rounded_normal_law_is_within_the_bound(steps: float) -> None:
    found = _distance(normal_table(steps), steps)
    assert found <= distance(steps)
    # The proof adds up the worst of every rounding; a bound that is a thousand times too large would prove little care.
    assert found > distance(steps) / 1000


def test_cells_of_a_fine_grid_have_the_relative_error_of_the_proof() -> None:
    """A grid of 65,536 levels has too many cells to add up with 60 digits; some of each size are looked at."""
    steps, unit = 32767.5, 2.0**-53
    table = normal_table(steps)
    for k in (1, 7, 1000, 20_000, 65_535, 120_000, 200_000, 250_000):
        exact, error = cell_error(table, _tail, steps, k)
        assert error <= exact * (3.5 * (k / steps) ** 2 + 11) * unit + 2.0**-65


@pytest.mark.parametrize(
    "planted",
    [
        lambda: changed(normal_table(64.0), lambda b: b + np.uint64(1 << 20)),
        lambda: changed(normal_table(64.0), lambda b: np.append(b[1:], b[-1] + np.uint64(1))),
        lambda: changed(normal_table(64.0), lambda b: b >> np.uint64(32) << np.uint64(32)),
        lambda: changed(normal_table(64.0), lambda b: (b.astype(np.float64) * (1 - 1e-12)).astype(np.uint64)),
        # One cell more on each side, which goes to its neighbour.
        lambda: NoiseTable(544, normal_table(64.0 * (1 + 1e-9)).boundaries[1:-1]),
    ],
    ids=["moved by 2^-44", "shifted by a cell", "32 bits", "off by 1e-12", "sigma off by a billionth"],
)
def test_planted_tables_are_beyond_the_bound(planted: Callable[[], NoiseTable]) -> None:
    assert _distance(planted(), 64.0) > distance(64.0)


@pytest.mark.parametrize("steps", [*STEPS, 32767.5])
def test_boundaries_grow_and_mirror_each_other(steps: float) -> None:
    table = normal_table(steps)
    bounds = table.boundaries
    assert len(bounds) == 2 * table.reach == 2 * math.ceil(CUT * steps)
    assert (bounds[:-1] <= bounds[1:]).all()
    assert (bounds + bounds[::-1] == 0).all(), "each pair adds up to 2^64"


@pytest.mark.parametrize("steps", [64.0, 127.5, 32767.5])
def test_guide_ladder_and_starts_are_the_table(steps: float) -> None:
    table = normal_table(steps)
    words = np.random.default_rng(1).integers(0, WORD, size=100_000, dtype=np.uint64, endpoint=False)
    values, begin = table.values(words), (words >> np.uint64(48)).astype(np.intp)
    guided = table.guide[begin]
    sure = ~np.isnan(guided)
    assert (guided[sure] == values[sure]).all()
    assert sure.mean() > (0.97 if steps < 200 else -1)
    assert (values + table.reach >= table.starts[begin]).all()
    assert (values + table.reach <= table.starts[begin + 1]).all()
    high = (words >> np.uint64(32)).astype(np.int64)
    assert (table.ladder[values + table.reach] <= high).all()
    assert (table.ladder[values + table.reach + 1] >= high).all()


def test_the_bound_is_the_documented_formula() -> None:
    assert distance(64.0) == pytest.approx(2.0**-49 + 17 * 64 * 2.0**-64, rel=1e-12)


def test_decimal_precision_is_left_alone() -> None:
    before = getcontext().prec
    _cells(64.0)
    assert getcontext().prec == before
