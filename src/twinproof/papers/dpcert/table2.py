"""Table 2: clean accuracy, average certified radius and certified accuracy at 0.25 of every method, and of the house recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinproof.papers.catalogue.dpcert import TABLE_2_MEASURES, table_2_key, table_2_values
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.comparison import difference_text, estimate_text
from twinproof.papers.dpcert.certified_curves import READING, Group, curve_panels, table_curves
from twinproof.papers.dpcert.methods import (
    GROUNDS,
    HOUSE,
    METHODS,
    OUR_METHODS,
    PUBLISHED_METHODS,
    SIGMAS,
    Ground,
    grounds_of,
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
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Findings, Table
from twinproof.papers.statistics import over_repetitions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = tuple(method.name for method in (*PUBLISHED_METHODS, *OUR_METHODS))
_NOTES = (
    READING,
    "private rows are trained at (3, 1e-5) by privacy loss distributions, with the authors' other settings (docs/papers.md); "
    "the house recipe has its own",
    "published and difference are - where the paper has no such row; differences are ours minus theirs",
    "CIFAR-10 is not here: its network is a vision transformer with weights from a public data set, which are not here",
)


@dataclass(frozen=True)
class Table2:
    """All of it but CIFAR-10. Methods that never saw noise are trained once and certified at the three sigmas."""

    grounds: tuple[Ground, ...] = GROUNDS

    def cells(self, effort: Effort) -> list[Cell]:
        """Those that are certified three times come first: with several processes no long one is left for the end."""
        grounds = grounds_of(self.grounds, effort)
        found = [cell for method in _ROWS for ground in grounds for cell in models_of(method, ground, effort)]
        return sorted(found, key=lambda cell: METHODS[cell.method].augmented)

    def findings(self, done: Sequence[Measured]) -> Findings:
        """A table for each data set, the house recipe against the best published row, and the curves."""
        sources = sources_of(done)
        ours = {
            table_2_key(source, method, sigma, measure): values(done, Model(method, source, sigma), read)
            for source in sources
            for method in _ROWS
            for sigma in SIGMAS
            for measure, read in _readings(sigma).items()
        }
        groups = (Group("", table_curves()),)
        return Findings(
            panels=tuple(panel for source in sources for panel in curve_panels(done, source, groups, SIGMAS)),
            ours=ours,
            notes=_NOTES,
            tables=(*(_of_paper(source, ours) for source in sources), _of_house(sources, ours)),
        )

    def figure(self, findings: Findings, caption: str) -> Figure:
        """The curves behind the table, as in Figure 7: a row for each data set."""
        from twinproof.papers.draw import draw_panels

        return draw_panels(findings.panels, caption, columns=len(SIGMAS), names_above=True)


Ours = dict[str, tuple[float, ...]]


def _readings(sigma: float) -> dict[str, Reading]:
    """How each measure of the table is read off a cell."""
    readings = (accuracy, mean_radius(sigma), certified_at(sigma, PUBLISHED_RADIUS))
    return {measure: read for (measure, _), read in zip(TABLE_2_MEASURES, readings, strict=True)}


def _of_paper(source: str, ours: Ours) -> Table:
    """The rows of one data set in the paper's order, ours behind; three columns for each measure."""
    published = table_2_values()
    header = ["sigma", "method"]
    for measure, unit in TABLE_2_MEASURES:
        header += [f"{_named(measure, unit)} (95 % interval)", "published", "difference"]
    rows = []
    for sigma in SIGMAS:
        for method in _ROWS:
            row = [f"{sigma:g}", METHODS[method].label]
            for measure, unit in TABLE_2_MEASURES:
                key = table_2_key(source, method, sigma, measure)
                estimate, printed = over_repetitions(ours[key]), published.get(key)
                gap = None if printed is None else estimate.mean - printed
                row += [estimate_text(estimate, unit), "-" if printed is None else f"{printed:g}", difference_text(gap, unit)]
            rows.append(tuple(row))
    return Table(source, tuple(header), tuple(rows))


def _of_house(sources: Sequence[str], ours: Ours) -> Table:
    """The house recipe against the best row that the paper has for a private method, measure by measure."""
    rows = []
    for source in sources:
        for sigma in SIGMAS:
            for measure, unit in TABLE_2_MEASURES:
                estimate = over_repetitions(ours[table_2_key(source, HOUSE, sigma, measure)])
                best = best_published(source, sigma, measure)
                name, value = ("-", None) if best is None else (f"{best[1]:g} ({METHODS[best[0]].label})", best[1])
                gap = difference_text(None if value is None else estimate.mean - value, unit)
                rows.append((source, f"{sigma:g}", _named(measure, unit), name, estimate_text(estimate, unit), gap))
    header = ("data", "sigma", "measure", "best published private row", METHODS[HOUSE].label, "difference")
    return Table("The house recipe against the best published private row", header, tuple(rows))


def _named(measure: str, unit: str) -> str:
    return f"{measure}, {unit}" if unit == "%" else measure


def best_published(source: str, sigma: float, measure: str) -> tuple[str, float] | None:
    """The private method with the largest printed value, and that value; None where the paper has no such data set."""
    published = table_2_values()
    keys = {method.name: table_2_key(source, method.name, sigma, measure) for method in PUBLISHED_METHODS if method.private}
    found = {name: published[key] for name, key in keys.items() if key in published}
    return max(found.items(), key=lambda item: item[1]) if found else None
