"""Figures 5, 6, 10 to 14 and 17 to 19: metrics of each test image, their distribution and how they go with the radius."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.dpcert.certified_curves import RADIUS_AXIS
from twinproof.papers.dpcert.methods import METHODS, MNIST, Ground
from twinproof.papers.dpcert.metric_cells import (
    BASELINES,
    EVERY,
    SHOWN,
    VARIANTS,
    Histogram,
    Reading,
    histogram_lines,
    method_line,
    metric_cells,
    models_at,
    whole,
)
from twinproof.papers.dpcert.metric_numbers import told_numbers
from twinproof.papers.dpcert.readings import Model, repetitions, sources_of
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Findings, Line, Panel, Table
from twinproof.papers.smoothing import sigma_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

THRESHOLDS = (0.5, 1.0, 1.5)
"""Radii at which Figures 17 to 19 divide the test images."""
_NOTES = (
    "Hessian: largest absolute eigenvalue (the authors' program takes the largest with its sign); results.json has both",
    "Lipschitz: of the logits, linf to l1, the largest ratio that a search found; results.json has the published loop too",
    "an image without an answer, or with a wrong one, has radius 0",
)
_FIGURE_5 = "dpcert-fig5"


@dataclass(frozen=True)
class _MetricFigure:
    """A figure of metrics at one sigma: on the runs of Table 2, with the methods' names above the panels."""

    ground: Ground
    sigma: float

    def cells(self, effort: Effort) -> list[Cell]:
        """On the runs of Table 2."""
        return metric_cells(EVERY, self.ground, self.sigma, effort)

    @property
    def cells_in(self) -> str:
        """Figure 5, which has all of its cells, where it is about the same data set and sigma."""
        return _FIGURE_5 if (self.ground, self.sigma) == (MNIST, 0.5) else ""

    def figure(self, findings: Findings, caption: str) -> Figure:
        """Three panels in a row."""
        from twinproof.papers.draw import draw_panels

        return draw_panels(findings.panels, caption, columns=3, names_above=True)


@dataclass(frozen=True)
class MetricHistograms(_MetricFigure):
    """Figures 5 and 10 to 14: a row for the baselines, a row for the instances of DP-CERT and the house recipe."""

    def findings(self, done: Sequence[Measured]) -> Findings:
        """The share of images in each fifth of a decade."""
        (source,) = sources_of(done)
        models = models_at(done, source, self.sigma)
        panels = tuple(
            Panel(
                f"{source}, sigma {self.sigma:g}",
                f"log10 of the {words}",
                histogram_lines(models, group, metric, whole(metric)),
                fitted=True,
            )
            for group in (BASELINES, VARIANTS)
            for metric, words in SHOWN.items()
        )
        told = told_numbers(done, self.sigma, tuple(SHOWN))
        return Findings(panels, notes=_NOTES, tables=(self._medians(done, source),), told=told)

    def _medians(self, done: Sequence[Measured], source: str) -> Table:
        """The middle image of each model, the mean over trainings; and of how many images the curvature did not settle."""

        def row(method: str) -> tuple[str, ...]:
            found = [one.numbers for one in repetitions(done, Model(method, source, self.sigma))]
            middle = [fmean(numbers["metrics"][metric]["median"] for numbers in found) for metric in SHOWN]
            unsettled = max(numbers["not_converged"] for numbers in found)
            return (METHODS[method].label, *(f"{value:.3g}" for value in middle), str(unsettled))

        header = ("method", *SHOWN.values(), "images that did not settle, at most")
        return Table("The median over images", header, tuple(row(method) for method in EVERY))


@dataclass(frozen=True)
class MetricAgainstRadius(_MetricFigure):
    """Figure 6: images are grouped by radius; the logarithm of the mean metric of each group."""

    def findings(self, done: Sequence[Measured]) -> Findings:
        """A panel for each metric, and rank correlations over single images."""
        (source,) = sources_of(done)
        panels = tuple(
            Panel(
                f"{source}, sigma {self.sigma:g}: {words}",
                RADIUS_AXIS,
                tuple(self._line(done, method, source, metric) for method in EVERY),
                y_label="ln of the group's mean",
                fitted=True,
            )
            for metric, words in SHOWN.items()
        )
        return Findings(panels, notes=_NOTES, tables=(self._correlations(done, source),), cells_in=self.cells_in)

    def _relations(self, done: Sequence[Measured], method: str, source: str, metric: str) -> list[dict[str, Any]]:
        found = repetitions(done, Model(method, source, self.sigma))
        return [one.numbers["radius"][sigma_name(self.sigma)][metric] for one in found]

    def _line(self, done: Sequence[Measured], method: str, source: str, metric: str) -> Line:
        """Where every repetition has a group: a mean over fewer of them would not be one over trainings."""
        logarithms = [
            {group["low"]: group["log_mean"] for group in relation["groups"] if group["log_mean"] is not None}
            for relation in self._relations(done, method, source, metric)
        ]
        places = tuple(sorted(set.intersection(*(set(each) for each in logarithms))))
        return method_line(method, places, tuple(tuple(each[place] for each in logarithms) for place in places))

    def _correlations(self, done: Sequence[Measured], source: str) -> Table:
        def text(method: str, metric: str) -> str:
            found = [relation["spearman"] for relation in self._relations(done, method, source, metric)]
            known = [value for value in found if value is not None]
            return f"{fmean(known):.3f}" if len(known) == len(found) else "-"

        rows = tuple((METHODS[method].label, *(text(method, metric) for metric in SHOWN)) for method in EVERY)
        return Table("Rank correlation (Spearman) with the certified radius", ("method", *SHOWN.values()), rows)


@dataclass(frozen=True)
class MetricSplits(_MetricFigure):
    """Figures 17 to 19: one metric of the images with at least a radius (top), and of the others."""

    metric: str

    def findings(self, done: Sequence[Measured]) -> Findings:
        """Shares are of all images, so that the two rows together are the whole distribution."""
        (source,) = sources_of(done)
        models = models_at(done, source, self.sigma)
        words = {"at_least": "at least", "below": "below"}
        panels = tuple(
            Panel(
                f"{source}, sigma {self.sigma:g}: radius {words[side]} {threshold:g}",
                f"log10 of the {SHOWN[self.metric]}",
                histogram_lines(models, EVERY, self.metric, self._side(threshold, side)),
                fitted=True,
            )
            for side in words
            for threshold in THRESHOLDS
        )
        return Findings(panels, notes=_NOTES, cells_in=self.cells_in)

    def _side(self, threshold: float, side: str) -> Reading:
        def read(one: Measured) -> Histogram:
            splits = one.numbers["radius"][sigma_name(self.sigma)][self.metric]["splits"]
            (found,) = (split[side] for split in splits if split["threshold"] == threshold)
            histogram: Histogram = found
            return histogram

        return read
