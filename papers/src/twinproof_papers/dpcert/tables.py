"""Tables 2, 3 and 4 of DP-CERT, and how the house recipe compares."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median

from twinproof.errors import ConfigError
from twinproof.guarantee import format_down
from twinproof_papers.catalogue.dpcert import DPCERT, TABLE_2_MEASURES, table_2_key, table_2_values
from twinproof_papers.cell import Cell, Measured
from twinproof_papers.comparison import RADIUS, difference_text, estimate_of, estimate_text, published_text
from twinproof_papers.dpcert.curves import PRINTED, READING, Group, curve_panels, table_curves
from twinproof_papers.dpcert.methods import (
    FASHION_MNIST,
    HOUSE,
    METHODS,
    MNIST,
    OUR_METHODS,
    PUBLISHED_METHODS,
    PUBLISHED_RADIUS,
    SETUPS,
    SIGMAS,
    UPPER_END,
    Model,
    Reading,
    Setup,
    accuracy,
    cells_of,
    certified_at,
    long_first,
    mean_radius,
    models_of,
    setups_of,
    sources_of,
    values,
)
from twinproof_papers.experiment import Options
from twinproof_papers.findings import Estimate, Findings, Line, Panel, Table

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
"""Our numbers by ``table_2_key``, one for each repetition; rows that were not made are absent."""


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


SPREAD_NOTE = (
    "against the paper: cells of both certified measures, as they are shown; pairs of trainings: absolute differences over all "
    "data sets and sigmas, the median and the largest"
)
_CERTIFIED = TABLE_2_MEASURES[1:]  # all but clean accuracy
_DIGITS = {"%": 2, RADIUS: 4}


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


_ROWS = tuple(method.name for method in (*PUBLISHED_METHODS, *OUR_METHODS))
_NOTES = (
    READING,
    PRINTED,
    "private rows are trained at (3, 1e-5) by privacy loss distributions, with the authors' other settings (docs/dpcert.md); "
    "the house recipe has its own",
    "published and difference are - where the paper has no such row, ours where that row was not made; differences are ours "
    "minus theirs, of the numbers as they are shown",
    GAP_NOTE,
    "CIFAR-10 is not here: its network is a vision transformer with weights from a public data set, which are not here",
)


@dataclass(frozen=True)
class Table2:
    """All of it but CIFAR-10. Methods that never saw noise are trained once and certified at the three sigmas.

    ``rows`` are the methods whose cells are made.
    """

    setups: tuple[Setup, ...] = SETUPS
    rows: tuple[str, ...] = _ROWS

    def only(self, methods: tuple[str, ...]) -> Table2:
        for name in methods:
            if name not in self.rows:
                near = difflib.get_close_matches(name, self.rows, n=1)
                raise ConfigError(
                    "the table has no such row",
                    where="methods",
                    got=name,
                    wanted=", ".join(self.rows),
                    fix=f"did you mean {near[0]!r}?" if near else "",
                )
        return replace(self, rows=tuple(name for name in self.rows if name in methods))

    def cells(self, options: Options) -> list[Cell]:
        setups = setups_of(self.setups, options)
        return long_first(cell for method in self.rows for setup in setups for cell in models_of(method, setup, options))

    def findings(self, done: Sequence[Measured]) -> Findings:
        """A table for each data set, the house recipe against the best published row, trainings against each other, curves."""
        sources, present = sources_of(done), {one.cell.method for one in done}
        ours: Ours = {
            table_2_key(source, method, sigma, measure): values(done, Model(method, source, sigma), read)
            for source in sources
            for method in _ROWS
            if method in present
            for sigma in SIGMAS
            for measure, read in _readings(sigma).items()
        }
        groups = (Group("", tuple(curve for curve in table_curves() if curve.method in present)),)
        spread = spread_tables(sources, [method for method in _ROWS if method in present], ours)
        return Findings(
            panels=tuple(panel for source in sources for panel in curve_panels(done, source, groups, SIGMAS)),
            ours=ours,
            notes=(*_NOTES, *([SPREAD_NOTE] if spread else [])),
            tables=(*(_of_paper(source, ours) for source in sources), against_the_best(sources, ours), *spread),
            columns=len(SIGMAS),
            names="above",
        )


def _readings(sigma: float) -> dict[str, Reading]:
    readings = (accuracy, mean_radius(sigma), certified_at(sigma, PUBLISHED_RADIUS))
    return {measure: read for (measure, _), read in zip(TABLE_2_MEASURES, readings, strict=True)}


def _of_paper(source: str, ours: Ours) -> Table:
    """The rows of one data set in the paper's order, ours behind; three columns for each measure."""
    header = ["sigma", "method"]
    interval = " (95 % interval)" if any(len(values) > 1 for values in ours.values()) else ""
    for measure, unit in TABLE_2_MEASURES:
        header += [f"{named(measure, unit)}{interval}", "published", "difference"]
    rows = tuple(
        (f"{sigma:g}", METHODS[method].label, *_numbers(source, method, sigma, ours)) for sigma in SIGMAS for method in _ROWS
    )
    return Table(source, tuple(header), rows)


def _numbers(source: str, method: str, sigma: float, ours: Ours) -> Iterator[str]:
    published = table_2_values()
    for measure, unit in TABLE_2_MEASURES:
        key = table_2_key(source, method, sigma, measure)
        estimate, printed = estimate_of(ours.get(key)), published.get(key)
        yield from (estimate_text(estimate, unit), published_text(printed), difference_text(estimate, printed, unit))


LEARNING_RATES: Mapping[str, tuple[float, ...]] = {MNIST.data: (0.25, 0.5, 1.0), FASHION_MNIST.data: (2.0, 4.0, 8.0)}
CLIPPING_NORMS: Mapping[str, tuple[float, ...]] = dict.fromkeys((MNIST.data, FASHION_MNIST.data), (0.01, 0.05, 0.1, 0.2, 0.5))
_METHOD, _SIGMA = "dp-gaussian", SIGMAS[0]


@dataclass(frozen=True)
class Sensitivity:
    """One of the two tables: ``setting`` of the training, its name in ``words``, and its values by data set.

    In a quick look the values of the first data set are tried.
    """

    setting: str
    words: str
    tried: Mapping[str, tuple[float, ...]] = field(hash=False)
    setups: tuple[Setup, ...] = SETUPS

    def cells(self, options: Options) -> list[Cell]:
        """The authors' own value is a cell of Table 2."""
        first = next(iter(self.tried.values()))
        return [
            cell
            for setup in setups_of(self.setups, options)
            for value in self.tried.get(setup.data, first)
            for cell in cells_of(_METHOD, setup, options, sigma=_SIGMA, changes={self.setting: value})
        ]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """Accuracy at each value; certified accuracy beside it, which the paper does not give."""
        sources = sources_of(done)
        ours = {
            self._key(source, value): values(done, self._model(source, value), accuracy)
            for source in sources
            for value in self._values(done, source)
        }
        return Findings(
            tuple(self._panel(done, source) for source in sources),
            ours=ours,
            notes=("the authors compared these settings on the test set, and so does this table: it chooses nothing",),
            columns=len(sources),
            names="above",
        )

    def _key(self, source: str, value: float) -> str:
        return f"{source} {self.words} {value:g}"

    def _model(self, source: str, value: float) -> Model:
        return Model(_METHOD, source, _SIGMA, {self.setting: value})

    def _values(self, done: Sequence[Measured], source: str) -> tuple[float, ...]:
        found = {one.cell.training[self.setting] for one in done if one.cell.training["data"]["source"] == source}
        return tuple(sorted(float(value) for value in found))

    def _panel(self, done: Sequence[Measured], source: str) -> Panel:
        places = self._values(done, source)
        readings = (("accuracy", accuracy), ("certified at 0.25", certified_at(_SIGMA, PUBLISHED_RADIUS)))
        lines = tuple(
            Line(label, "plain", colour, places, tuple(values(done, self._model(source, at), read) for at in places))
            for colour, (label, read) in enumerate(readings)
        )
        title = f"{source}: DP-Gaussian, sigma {_SIGMA:g}"
        return Panel(title, self.words, lines, logarithmic=True, fitted=True, printed=self._printed(source, places))

    def _printed(self, source: str, places: tuple[float, ...]) -> tuple[Line, ...]:
        published = {number.key: number.value for experiment in DPCERT for number in experiment.published}
        found = {place: published[key] for place in places if (key := self._key(source, place)) in published}
        line = Line("accuracy, as published", "printed", 0, tuple(found), tuple((value,) for value in found.values()))
        return (line,) if found else ()
