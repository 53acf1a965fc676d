"""Table 2: clean accuracy, average certified radius and certified accuracy at 0.25 of every method, and of the house recipe."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from twinproof.errors import ConfigError
from twinproof.papers.catalogue.dpcert import TABLE_2_MEASURES, table_2_key, table_2_values
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.comparison import difference_text, estimate_of, estimate_text, published_text
from twinproof.papers.dpcert.certified_curves import PRINTED, READING, Group, curve_panels, table_curves
from twinproof.papers.dpcert.gap import GAP_NOTE, against_the_best, named
from twinproof.papers.dpcert.methods import (
    GROUNDS,
    METHODS,
    OUR_METHODS,
    PUBLISHED_METHODS,
    SIGMAS,
    Ground,
    grounds_of,
    long_first,
    models_of,
)
from twinproof.papers.dpcert.readings import (
    PUBLISHED_RADIUS,
    Model,
    Reading,
    accuracy,
    certified_at,
    mean_radius,
    sources_of,
    values,
)
from twinproof.papers.dpcert.spread import SPREAD_NOTE, spread_tables
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Findings, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
Ours = dict[str, tuple[float, ...]]
"""Our numbers by ``table_2_key``, one for each repetition; rows that were not made are absent."""


@dataclass(frozen=True)
class Table2:
    """All of it but CIFAR-10. Methods that never saw noise are trained once and certified at the three sigmas.

    ``rows`` are the methods whose cells are made.
    """

    grounds: tuple[Ground, ...] = GROUNDS
    rows: tuple[str, ...] = _ROWS

    def only(self, methods: tuple[str, ...]) -> Table2:
        """The table with these rows alone, in its own order."""
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

    def cells(self, effort: Effort) -> list[Cell]:
        """Long ones first."""
        grounds = grounds_of(self.grounds, effort)
        return long_first(cell for method in self.rows for ground in grounds for cell in models_of(method, ground, effort))

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
        )

    def figure(self, findings: Findings, caption: str) -> Figure:
        """The curves behind the table, as in Figure 7: a row for each data set."""
        from twinproof.papers.draw import draw_panels

        return draw_panels(findings.panels, caption, columns=len(SIGMAS), names_above=True)


def _readings(sigma: float) -> dict[str, Reading]:
    """How each measure of the table is read off a cell."""
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
