"""How each row of Table 2 stands to the printed one, and how far one training of it is from the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import median

from twinproof.papers.catalogue.dpcert import TABLE_2_MEASURES, table_2_key, table_2_values
from twinproof.papers.comparison import RADIUS, difference_text, estimate_of
from twinproof.papers.dpcert.methods import METHODS, SIGMAS
from twinproof.papers.findings import Table

SPREAD_NOTE = (
    "against the paper: cells of both certified measures, as they are shown; pairs of trainings: absolute differences over all "
    "data sets and sigmas, the median and the largest"
)
_CERTIFIED = TABLE_2_MEASURES[1:]  # all but clean accuracy
_DIGITS = {"%": 2, RADIUS: 4}
Ours = Mapping[str, Sequence[float]]


def spread_tables(sources: Sequence[str], methods: Sequence[str], ours: Ours) -> tuple[Table, ...]:
    """One table with a line for each of ``methods``; none where every row was trained once."""
    if all(len(values) < 2 for values in ours.values()):
        return ()
    header = ["method", "at or above the paper", "below, but it lies inside our interval", "below it"]
    for measure, unit in _CERTIFIED:
        header += [f"{measure}: two trainings differ by{' (points)' if unit == '%' else ''}", "at most"]
    rows = tuple(
        (METHODS[method].label, *_against_paper(sources, method, ours), *_between_trainings(sources, method, ours))
        for method in methods
    )
    return (Table("Every row against the paper, and against itself", tuple(header), rows),)


def _against_paper(sources: Sequence[str], method: str, ours: Ours) -> tuple[str, str, str]:
    """How many cells are at or above what is printed, below it within chance, and below it; - without printed ones."""
    above, within, below = 0, 0, 0
    for measure, unit in _CERTIFIED:
        for key in _keys(sources, method, measure):
            estimate, printed = estimate_of(ours.get(key)), table_2_values().get(key)
            if estimate is None or printed is None:
                continue
            if float(difference_text(estimate, printed, unit)) >= 0:
                above += 1
            elif estimate.low is not None and estimate.high is not None and estimate.low <= printed <= estimate.high:
                within += 1
            else:
                below += 1
    counted = above + within + below
    return (f"{above} of {counted}", str(within), str(below)) if counted else ("-", "-", "-")


def _between_trainings(sources: Sequence[str], method: str, ours: Ours) -> tuple[str, ...]:
    """Of each measure the median and the largest difference of two trainings of one cell."""
    shown: list[str] = []
    for measure, unit in _CERTIFIED:
        pairs = [pair for key in _keys(sources, method, measure) for pair in combinations(ours.get(key, ()), 2)]
        gaps = [abs(one - other) for one, other in pairs]
        shown += [f"{value:.{_DIGITS[unit]}f}" for value in (median(gaps), max(gaps))] if gaps else ["-", "-"]
    return tuple(shown)


def _keys(sources: Sequence[str], method: str, measure: str) -> list[str]:
    return [table_2_key(source, method, sigma, measure) for source in sources for sigma in SIGMAS]
