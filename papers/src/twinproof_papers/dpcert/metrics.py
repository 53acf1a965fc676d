"""Figures 5, 6, 10 to 14 and 17 to 19 of DP-CERT: metrics of each test image.

How they are distributed, and how they go with the radius.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from twinproof_papers.cell import Cell, Measured, Numbers
from twinproof_papers.dpcert.curves import RADIUS_AXIS
from twinproof_papers.dpcert.methods import (
    HOUSE,
    METHODS,
    MNIST,
    Model,
    Setup,
    cells_of,
    long_first,
    repetitions,
    setups_of,
    sources_of,
)
from twinproof_papers.experiment import Options
from twinproof_papers.findings import Findings, Line, Panel, Table
from twinproof_papers.smoothing import sigma_name

BINS_PER_DECADE = 10
_DIGITS = 6  # of a mean or a correlation; the smallest difference that means anything is in the third
_OUTSIDE = ("not_positive", "below", "above")


def short_numbers(done: Sequence[Measured], sigma: float, shown: Sequence[str]) -> dict[str, Numbers]:
    """By name of the cell, its numbers at ``sigma``; metrics that are not ``shown`` without their relation to the radius."""
    return {one.cell.name: _short_numbers(one.numbers, sigma_name(sigma), shown) for one in done}


def _short_numbers(numbers: Numbers, sigma: str, shown: Sequence[str]) -> Numbers:
    kept = {key: value for key, value in numbers.items() if key not in ("metrics", "radius")}
    relations = numbers["radius"][sigma]
    return {
        **kept,
        "metrics": {name: _metric(found) for name, found in numbers["metrics"].items()},
        "radius": {sigma: {name: _relation(found, whole=name in shown) for name, found in relations.items()}},
    }


def _metric(found: Mapping[str, Any]) -> Numbers:
    words = {key: _short(value) for key, value in found.items() if key != "histogram"}
    return {**words, "histogram": short_histogram(found["histogram"])}


def _relation(found: Mapping[str, Any], *, whole: bool) -> Numbers:
    brief: Numbers = {"spearman": _short(found["spearman"])}
    if not whole:
        return brief
    groups = [[group["low"], group["count"], _short(group["mean"])] for group in found["groups"]]
    return {**brief, "groups": groups, "splits": [_split(split) for split in found["splits"]]}


def _split(found: Mapping[str, Any]) -> Numbers:
    sides = {side: short_histogram(found[side]) for side in ("at_least", "below")}
    return {"threshold": found["threshold"], **sides}


def short_histogram(histogram: Mapping[str, Any]) -> Numbers:
    """``first`` and ``counts`` of the bins from the first to the last that is not empty, and what lies outside, if any does.

    Bin number k holds the values from 10^(k / 10) to 10^((k + 1) / 10); bin ``first`` is the first of ``counts``.
    """
    counts: list[int] = list(histogram["counts"])
    filled = [place for place, count in enumerate(counts) if count]
    outside = {name: histogram[name] for name in _OUTSIDE if histogram[name]}
    if not filled:
        return {"first": 0, "counts": [], **outside}
    first = round(math.log10(histogram["edges"][filled[0]]) * BINS_PER_DECADE)
    return {"first": first, "counts": counts[filled[0] : filled[-1] + 1], **outside}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{_DIGITS}g}")


SHOWN: Mapping[str, str] = {
    "gradient_norm": "input gradient norm",
    "hessian_norm": "input Hessian norm",
    "lipschitz_logits": "local Lipschitz constant",
}
"""The three of the paper: l2 slope of the loss, its largest |curvature|, and the steepest change of the logits found nearby."""
BASELINES = ("regular", "dpsgd", "psac", "dp-gaussian")
VARIANTS = ("dp-gaussian", "dp-smoothadv", "dp-stability", "dp-macer", HOUSE)
EVERY = (*BASELINES, *VARIANTS[1:])
_MERGED = 2  # bins of a histogram that are drawn as one
Histogram = Mapping[str, Any]
Reading = Callable[[Measured], Histogram]
"""From a cell, one of its histograms as ``LogHistogram.as_dict`` writes it."""


def metric_cells(methods: Sequence[str], setup: Setup, sigma: float, options: Options) -> list[Cell]:
    """Each goes on with the run of a cell of Table 2, which is made first where it is not there."""
    (chosen,) = setups_of((setup,), options)
    found = (cell for method in methods for cell in cells_of(method, chosen, options, sigma=sigma, metrics=True))
    return long_first(found)


def models_at(done: Sequence[Measured], source: str, sigma: float) -> dict[str, list[Measured]]:
    """The repetitions of every method on one data set at one sigma."""
    return {method: repetitions(done, Model(method, source, sigma)) for method in EVERY}


def whole(metric: str) -> Reading:

    def read(one: Measured) -> Histogram:
        found: Histogram = one.numbers["metrics"][metric]["histogram"]
        return found

    return read


def histogram_lines(
    models: Mapping[str, Sequence[Measured]], methods: Sequence[str], metric: str, read: Reading
) -> tuple[Line, ...]:
    """A line for each of ``methods``: the share of all its images in each fifth of a decade; places are powers of ten.

    ``models`` are those of ``models_at``; ``read`` gives a histogram of ``metric``, of all images or of some.
    """
    known = {number for each in models.values() for one in each for number in _shares(one, whole(metric))}
    numbers = range(min(known, default=0), max(known, default=0) + 1)
    places = tuple((number + 0.5) * _MERGED / BINS_PER_DECADE for number in numbers)
    return tuple(
        method_line(method, places, tuple(tuple(shares.get(number, 0.0) for shares in each) for number in numbers))
        for method in methods
        for each in [[_shares(one, read) for one in models[method]]]
    )


def method_line(method: str, places: tuple[float, ...], samples: tuple[tuple[float, ...], ...]) -> Line:
    """A line in the look of its method, the same in all figures of metrics."""
    known = METHODS[method]
    kind = "sound" if method == HOUSE else "plain" if known.augmented else "weaker"
    return Line(known.label, kind, EVERY.index(method), places, samples)


def _shares(one: Measured, read: Reading) -> dict[int, float]:
    """In per cent of all images, by the number of the bin that is drawn; empty bins are left out."""
    histogram, total = read(one), int(one.numbers["examples"])
    shares: dict[int, float] = {}
    for edge, count in zip(histogram["edges"], histogram["counts"], strict=False):  # one edge more than bins
        if not count:
            continue
        number = round(math.log10(edge) * BINS_PER_DECADE) // _MERGED
        shares[number] = shares.get(number, 0.0) + 100 * count / total
    return shares


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

    setup: Setup
    sigma: float

    def cells(self, options: Options) -> list[Cell]:
        return metric_cells(EVERY, self.setup, self.sigma, options)

    @property
    def cells_in(self) -> str:
        """Figure 5, which has all of its cells, where it is about the same data set and sigma."""
        return _FIGURE_5 if (self.setup, self.sigma) == (MNIST, 0.5) else ""


@dataclass(frozen=True)
class MetricHistograms(_MetricFigure):
    """Figures 5 and 10 to 14: a row for the baselines, a row for the instances of DP-CERT and the house recipe."""

    def findings(self, done: Sequence[Measured]) -> Findings:
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
        short = short_numbers(done, self.sigma, tuple(SHOWN))
        return Findings(panels, notes=_NOTES, tables=(self._medians(done, source),), short=short, names="above")

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
        tables = (self._correlations(done, source),)
        return Findings(panels, notes=_NOTES, tables=tables, cells_in=self.cells_in, names="above")

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
        return Findings(panels, notes=_NOTES, cells_in=self.cells_in, names="above")

    def _side(self, threshold: float, side: str) -> Reading:
        def read(one: Measured) -> Histogram:
            splits = one.numbers["radius"][sigma_name(self.sigma)][self.metric]["splits"]
            (found,) = (split[side] for split in splits if split["threshold"] == threshold)
            histogram: Histogram = found
            return histogram

        return read
