"""Figures 4, 7 to 9, 15 and 16 of DP-CERT: certified accuracy, radii, and accuracy under FGSM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twinproof_papers.catalogue.dpcert import TABLE_2_MEASURES, table_2_key, table_2_values
from twinproof_papers.cell import Cell, Measured
from twinproof_papers.comparison import RADIUS, estimate_of, estimate_text
from twinproof_papers.dpcert.methods import (
    COPIES,
    METHODS,
    MNIST,
    OUR_METHODS,
    PUBLISHED_METHODS,
    PUBLISHED_RADIUS,
    SETUPS,
    SIGMAS,
    TABLE_2,
    MethodOfTable,
    Model,
    Reading,
    Setup,
    cells_of,
    certified_at,
    fgsm_at,
    long_first,
    mean_radius,
    models_of,
    setups_of,
    sources_of,
    values,
)
from twinproof_papers.experiment import Options
from twinproof_papers.findings import Findings, Line, Panel, Table
from twinproof_papers.smoothing import FGSM_SIZES, radii_of

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
    setups: tuple[Setup, ...] = SETUPS
    sigmas: tuple[float, ...] = SIGMAS

    def cells(self, options: Options) -> list[Cell]:
        """Shared with Table 2 where settings agree; each once."""
        found = [
            cell
            for setup in setups_of(self.setups, options)
            for group in self.groups
            for curve in group.curves
            for sigma in self.sigmas
            for cell in cells_of(curve.method, setup, options, sigma=sigma, changes=curve.settings)
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
            columns=len(self.groups) * len(self.sigmas),
            # Groups have names of their own, which then stand under their panels.
            names="above" if len(self.groups) == 1 else "below",
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


_STEPS_PER_BIN = 2  # of ``radii_of``: bins of 0.1
_SHOWN = (0.5, 1.0, 1.5)  # radii in the table


@dataclass(frozen=True)
class RadiusDistribution:
    """The methods of the figure at its one sigma; a function of the cells of Table 2."""

    setup: Setup = MNIST
    methods: tuple[str, ...] = ("regular", "dpsgd", "psac", "dp-gaussian")
    sigma: float = 0.5

    def cells(self, options: Options) -> list[Cell]:
        (setup,) = setups_of((self.setup,), options)
        return [cell for method in self.methods for cell in cells_of(method, setup, options, sigma=self.sigma)]

    def findings(self, done: Sequence[Measured]) -> Findings:
        """The share of test images in each bin, and the share without a right answer before the first."""
        (source,) = sources_of(done)
        readings = binned(self.sigma)

        def line(place: int, method: str) -> Line:
            samples = tuple(values(done, Model(method, source, self.sigma), read) for read in readings.values())
            return Line(METHODS[method].label, "plain", place, tuple(readings), samples)

        lines = tuple(line(place, method) for place, method in enumerate(self.methods))
        axis = "radius, bins of 0.1 (before 0: not right)"
        return Findings(
            (Panel(f"{source}, sigma {self.sigma:g}", axis, lines, fitted=True),),
            notes=("an image without an answer, or with a wrong one, counts in the place before 0, whatever its radius",),
            tables=(self._numbers(done, source),),
            cells_in=TABLE_2,
            columns=1,
            names="above",
        )

    def _numbers(self, done: Sequence[Measured], source: str) -> Table:
        """The share that is not right, and that with a radius of at least some."""
        wrong = next(iter(binned(self.sigma).values()))
        readings = (wrong, *(certified_at(self.sigma, radius) for radius in _SHOWN))
        rows = tuple(
            (METHODS[method].label, *(estimate_text(estimate_of(values(done, model, read))) for read in readings))
            for method in self.methods
            for model in (Model(method, source, self.sigma),)
        )
        header = ("method", "not right, %", *(f"radius of at least {radius:g}, %" for radius in _SHOWN))
        return Table(f"{source}, sigma {self.sigma:g}", header, rows)


def binned(sigma: float) -> dict[float, Reading]:
    """By the lower end of its bin, the share of images in it; the first stands for those without a right answer."""
    radii = radii_of(sigma)
    edges = radii[::_STEPS_PER_BIN]
    shares: dict[float, Reading] = {-edges[1]: lambda one: 100 - certified_at(sigma, 0.0)(one)}
    for low, high in zip(edges, (*edges[1:], None), strict=True):
        shares[low] = _between(sigma, low, high)
    return shares


def _between(sigma: float, low: float, high: float | None) -> Reading:
    at_least = certified_at(sigma, low)
    if high is None:
        return at_least
    beyond = certified_at(sigma, high)
    return lambda one: at_least(one) - beyond(one)


@dataclass(frozen=True)
class Fgsm:
    """A panel for each data set and sigma; methods without noise in training are the same line in all of a row."""

    setups: tuple[Setup, ...] = SETUPS
    curves: tuple[Curve, ...] = table_curves()

    def cells(self, options: Options) -> list[Cell]:
        setups = setups_of(self.setups, options)
        return long_first(cell for setup in setups for curve in self.curves for cell in models_of(curve.method, setup, options))

    def findings(self, done: Sequence[Measured]) -> Findings:
        """Shares of all test images, not only of those that are right without an attack."""
        panels = (self._panel(done, source, sigma) for source in sources_of(done) for sigma in SIGMAS)
        return Findings(
            tuple(panels),
            notes=(
                "shares of all test images; the authors count only images that are right without an attack",
                "one step of one attack on the network without noise: an upper bound on robustness, no certificate",
            ),
            tables=(self._numbers(done),),
            cells_in=TABLE_2,
            columns=len(SIGMAS),
            names="above",
        )

    def _numbers(self, done: Sequence[Measured]) -> Table:
        """Accuracy at each size; what was trained without noise is one model for all sigmas, and stands once."""
        rows = [
            (source, f"{sigma:g}" if METHODS[curve.method].augmented else "-", curve.label, *self._at_sizes(done, model))
            for source in sources_of(done)
            for curve in self.curves
            for sigma in SIGMAS
            for model in (Model(curve.method, source, sigma),)
        ]
        header = ("data", "sigma", "method", *(f"linf {size:g}, %" for size in FGSM_SIZES))
        return Table("Accuracy under FGSM", header, tuple(dict.fromkeys(rows)))

    @staticmethod
    def _at_sizes(done: Sequence[Measured], model: Model) -> Iterator[str]:
        return (estimate_text(estimate_of(values(done, model, fgsm_at(size)))) for size in FGSM_SIZES)

    def _panel(self, done: Sequence[Measured], source: str, sigma: float) -> Panel:
        def line(place: int, curve: Curve) -> Line:
            model = Model(curve.method, source, sigma)
            samples = tuple(values(done, model, fgsm_at(size)) for size in FGSM_SIZES)
            return Line(curve.label, curve.kind, place, FGSM_SIZES, samples)

        lines = tuple(line(place, curve) for place, curve in enumerate(self.curves))
        return Panel(f"{source}, sigma {sigma:g}: FGSM", "linf size, inputs in [0, 1]", lines, logarithmic=True)
