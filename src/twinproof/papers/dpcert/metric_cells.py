"""The cells behind the figures of per-example metrics, and their histograms on one grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.dpcert.methods import HOUSE, METHODS, Ground, cells_of, grounds_of, long_first
from twinproof.papers.dpcert.metric_numbers import BINS_PER_DECADE
from twinproof.papers.dpcert.readings import Model, repetitions
from twinproof.papers.effort import Effort
from twinproof.papers.findings import Line

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


def metric_cells(methods: Sequence[str], ground: Ground, sigma: float, effort: Effort) -> list[Cell]:
    """Each goes on with the run of a cell of Table 2, which is made first where it is not there."""
    (chosen,) = grounds_of((ground,), effort)
    found = (cell for method in methods for cell in cells_of(method, chosen, effort, sigma=sigma, metrics=True))
    return long_first(found)


def models_at(done: Sequence[Measured], source: str, sigma: float) -> dict[str, list[Measured]]:
    """The repetitions of every method on one data set at one sigma."""
    return {method: repetitions(done, Model(method, source, sigma)) for method in EVERY}


def whole(metric: str) -> Reading:
    """The histogram of a metric over all test images."""

    def read(one: Measured) -> Histogram:
        found: Histogram = one.numbers["metrics"][metric]["histogram"]
        return found

    return read


def histogram_lines(
    models: Mapping[str, Sequence[Measured]], methods: Sequence[str], metric: str, read: Reading
) -> tuple[Line, ...]:
    """A line for each of ``methods``: the share of all its images in each fifth of a decade; places are powers of ten.

    ``models`` are those of ``models_at``; ``read`` gives a histogram of ``metric``, of all images or of some.

    Guarantees
        Lines of one metric have the same places, whatever methods and images they are of, so that a place means the same bin
        and panels can be compared; what has no logarithm is in none of them.
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
