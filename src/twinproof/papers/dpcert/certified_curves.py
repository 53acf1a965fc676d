"""Figures 4, 7, 8 and 9: certified accuracy against the radius, a panel for each data set and sigma."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twinproof.papers.catalogue.dpcert import TABLE_2_MEASURES, table_2_key, table_2_values
from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.comparison import RADIUS, estimate_of, estimate_text
from twinproof.papers.dpcert.methods import (
    COPIES,
    GROUNDS,
    METHODS,
    OUR_METHODS,
    PUBLISHED_METHODS,
    SIGMAS,
    TABLE_2,
    Ground,
    MethodOfTable,
    cells_of,
    grounds_of,
    long_first,
)
from twinproof.papers.dpcert.readings import PUBLISHED_RADIUS, Model, certified_at, mean_radius, sources_of, values
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Findings, Line, Panel, Table
from twinproof.papers.smoothing import radii_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RADIUS_AXIS = "certified radius (l2, inputs in [0, 1])"


@dataclass(frozen=True)
class Curve:
    """A line: a method, with ``settings`` of its training that differ from the authors'; ``kind`` is that of ``Line``."""

    method: str
    label: str
    kind: str = "plain"
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Group:
    """Lines that share a panel, and what its title says of them."""

    title: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class CertifiedCurves:
    """One of the figures: every group on every data set at every sigma."""

    groups: tuple[Group, ...]
    grounds: tuple[Ground, ...] = GROUNDS
    sigmas: tuple[float, ...] = SIGMAS

    def cells(self, effort: Effort) -> list[Cell]:
        """Shared with Table 2 where settings agree; each once."""
        found = [
            cell
            for ground in grounds_of(self.grounds, effort)
            for group in self.groups
            for curve in group.curves
            for sigma in self.sigmas
            for cell in cells_of(curve.method, ground, effort, sigma=sigma, changes=curve.settings)
        ]
        return long_first({cell.name: cell for cell in found}.values())

    def findings(self, done: Sequence[Measured]) -> Findings:
        """The panels, and two numbers of each line that is not one of Table 2, where the paper prints none."""
        panels = (curve_panels(done, source, self.groups, self.sigmas) for source in sources_of(done))
        of_table = all(curve in table_curves() for group in self.groups for curve in group.curves)
        return Findings(
            tuple(panel for each in panels for panel in each),
            notes=(READING, PRINTED),
            tables=() if of_table else (self._numbers(done),),
            cells_in=TABLE_2 if of_table else "",
        )

    def _numbers(self, done: Sequence[Measured]) -> Table:
        """Average certified radius and certified accuracy, line by line."""
        rows = [
            (source, f"{sigma:g}", curve.label, *_two_numbers(done, Model(curve.method, source, sigma, curve.settings)))
            for source in sources_of(done)
            for group in self.groups
            for sigma in self.sigmas
            for curve in group.curves
        ]
        header = ("data", "sigma", "line", "average certified radius", f"certified at {PUBLISHED_RADIUS:g}, %")
        return Table("The lines in two numbers", header, tuple(dict.fromkeys(rows)))

    def figure(self, findings: Findings, caption: str) -> Figure:
        """A row for each data set; groups have names of their own, which then stand under their panels."""
        from twinproof.papers.draw import draw_panels

        columns = len(self.groups) * len(self.sigmas)
        alone = len(self.groups) == 1
        return draw_panels(findings.panels, caption, columns=columns, names_above=alone, names_below=not alone)


READING = "certified accuracy: right, answered, and with a radius of at least the one on the axis; abstentions are never right"
PRINTED = f"open marks at {PUBLISHED_RADIUS:g}: what Table 2 prints for the line of the same colour"
_PRINTED_LABEL = "as published (Table 2)"


def curve_panels(done: Sequence[Measured], source: str, groups: Sequence[Group], sigmas: Sequence[float]) -> tuple[Panel, ...]:
    """The panels of one data set, group by group."""
    return tuple(_panel(done, source, group, sigma) for group in groups for sigma in sigmas)


def table_curves() -> tuple[Curve, ...]:
    """The methods of Table 2, and ours: thick, or dash-dotted where it is not private; those that never saw noise: dashed."""

    def curve(method: MethodOfTable) -> Curve:
        ours = "sound" if method.private else "reference"
        kind = ours if method in OUR_METHODS else "plain" if method.augmented else "weaker"
        return Curve(method.name, method.label, kind)

    return tuple(curve(method) for method in (*PUBLISHED_METHODS, *OUR_METHODS))


def _two_numbers(done: Sequence[Measured], model: Model) -> tuple[str, str]:
    radius = estimate_of(values(done, model, mean_radius(model.sigma)))
    certified = estimate_of(values(done, model, certified_at(model.sigma, PUBLISHED_RADIUS)))
    return estimate_text(radius, RADIUS), estimate_text(certified)


def _panel(done: Sequence[Measured], source: str, group: Group, sigma: float) -> Panel:
    radii = radii_of(sigma)

    def line(place: int, curve: Curve) -> Line:
        model = Model(curve.method, source, sigma, curve.settings)
        samples = tuple(values(done, model, certified_at(sigma, radius)) for radius in radii)
        return Line(curve.label, curve.kind, place, radii, samples)

    lines = tuple(line(place, curve) for place, curve in enumerate(group.curves))
    middle = f", {group.title}" if group.title else ""
    printed = _printed(source, group, sigma)
    return Panel(f"{source}{middle}, sigma {sigma:g}", RADIUS_AXIS, lines, cropped=True, printed=printed)


def _printed(source: str, group: Group, sigma: float) -> tuple[Line, ...]:
    """What Table 2 says of the curves that are rows of it, in their colours; other numbers of copies are not."""
    published, measure = table_2_values(), TABLE_2_MEASURES[-1][0]
    keys = {
        place: table_2_key(source, curve.method, sigma, measure)
        for place, curve in enumerate(group.curves)
        if curve.settings.get("copies", COPIES) == COPIES
    }
    return tuple(
        Line(_PRINTED_LABEL, "printed", place, (PUBLISHED_RADIUS,), ((published[key],),))
        for place, key in keys.items()
        if key in published
    )


def combinations_group() -> Group:
    """DP-Gaussian and DP-SmoothAdv as they are, with consistency regularisation, and with PSAC."""
    names = [f"{base}{added}" for base in ("dp-gaussian", "dp-smoothadv") for added in ("", "-consistency", "-psac")]
    # Said out loud, as a figure may hold other numbers of copies too.
    return Group("combinations", tuple(Curve(name, METHODS[name].label, settings={"copies": COPIES}) for name in names))


def copies_group(numbers: Sequence[int]) -> Group:
    """DP-Gaussian with that many noisy copies beside the original; 0 as in the paper: one noisy copy in its place."""
    replaced = Curve("dp-gaussian-replaced", METHODS["dp-gaussian-replaced"].label)
    beside = (Curve("dp-gaussian", f"K = {number}", settings={"copies": number}) for number in numbers)
    return Group("number of copies", (replaced, *beside))
