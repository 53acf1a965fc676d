"""The house recipe against the best published private row, and how much of what privacy costs it wins back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from twinproof.papers.catalogue.dpcert import TABLE_2_MEASURES, table_2_key, table_2_values
from twinproof.papers.comparison import RADIUS, difference_text, estimate_of, estimate_text, published_text
from twinproof.papers.dpcert.methods import HOUSE, METHODS, PUBLISHED_METHODS, SIGMAS, UPPER_END
from twinproof.papers.findings import Table
from twinproof.papers.statistics import Estimate
from twinproof.rounding import format_down

LEAST_GAP: Mapping[str, float] = {"%": 0.5, RADIUS: 0.005}
"""The smallest gap that a share is given of, by unit: more than one training usually differs from the next (``spread``)."""
GAP_NOTE = (
    "share of the gap closed: (house recipe - best published private row) / (row without privacy - best published private "
    f"row), of the means, rounded down; - where the row without privacy (the lower end of its interval, if it has one) is not "
    f"above the published one by {LEAST_GAP['%']:g} points or a radius of {LEAST_GAP[RADIUS]:g}, or a number is missing. Above "
    "100 %: the house recipe is above the row without privacy, which was trained for accuracy under noise"
)
_HEADER = (
    "data",
    "sigma",
    "measure",
    "best published private row",
    METHODS[HOUSE].label,
    "difference",
    METHODS[UPPER_END].label,
    "share of the gap closed",
)
Ours = Mapping[str, Sequence[float]]


def against_the_best(sources: Sequence[str], ours: Ours) -> Table:
    """A row for each data set, sigma and measure; what was not made is -."""
    rows = tuple(
        (source, f"{sigma:g}", named(measure, unit), *_compared(source, sigma, measure, unit, ours))
        for source in sources
        for sigma in SIGMAS
        for measure, unit in TABLE_2_MEASURES
    )
    return Table("The house recipe against the best published private row", _HEADER, rows)


def _compared(source: str, sigma: float, measure: str, unit: str, ours: Ours) -> tuple[str, ...]:
    house, upper = (estimate_of(ours.get(table_2_key(source, name, sigma, measure))) for name in (HOUSE, UPPER_END))
    best = best_published(source, sigma, measure)
    share = None if house is None or upper is None or best is None else share_of_gap(house.mean, upper, best[1], unit)
    return (
        "-" if best is None else f"{published_text(best[1])} ({METHODS[best[0]].label})",
        estimate_text(house, unit),
        difference_text(house, None if best is None else best[1], unit),
        estimate_text(upper, unit),
        "-" if share is None else f"{format_down(share, 0)} %",
    )


def share_of_gap(house: float, upper: Estimate, best: float, unit: str) -> float | None:
    """How much of the way from ``best`` to ``upper`` has been gone, in per cent; None where there is hardly any way to go.

    Guarantees
        0 at ``best``, 100 at the mean of ``upper``; negative for a house recipe below the published row, and never cut. None
        where the way may be shorter than ``LEAST_GAP``: there a share would tell of chance, not of the recipe.
    """
    surely = upper.mean if upper.low is None else upper.low
    # To nine digits: 0.747 - 0.742 is not quite 0.005.
    if round(surely - best, 9) < LEAST_GAP[unit]:
        return None
    return 100 * (house - best) / (upper.mean - best)


def best_published(source: str, sigma: float, measure: str) -> tuple[str, float] | None:
    """The private method with the largest printed value, and that value; None where the paper has no such data set."""
    published = table_2_values()
    keys = {method.name: table_2_key(source, method.name, sigma, measure) for method in PUBLISHED_METHODS if method.private}
    found = {name: published[key] for name, key in keys.items() if key in published}
    return max(found.items(), key=lambda item: item[1]) if found else None


def named(measure: str, unit: str) -> str:
    """A measure as a header names it, with its unit where that is not in the name."""
    return f"{measure}, {unit}" if unit == "%" else measure
