"""The cells behind the figures of per-example metrics, and their histograms on one grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twinproof.papers.cell import Cell
from twinproof.papers.cell_store import Measured
from twinproof.papers.dpcert.methods import HOUSE, METHODS, Ground, cells_of, grounds_of, long_first
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
# A histogram has ten bins for each decade; two of them are drawn as one.
_BINS_PER_DECADE, _MERGED = 10, 2
Histogram = Mapping[str, Any]
Reading = Callable[[Measured], Histogram]
"""From a cell, one of its histograms as ``LogHistogram.as_dict`` writes it."""


def metric_cells(methods: Sequence[str], ground: Ground, sigma: float, effort: Effort) -> list[Cell]:
    """Each goes on with the run of a cell of Table 2, which is made first where it is not there."""
    (chosen,) = grounds_of((ground,), effort)
    found = (cell for method in methods for cell in cells_of(method, chosen, effort, sigma=sigma, metrics=True))
    return long_first(found)


def whole(metric: str) -> Reading:
    """The histogram of a metric over all test images."""

    def read(one: Measured) -> Histogram:
        found: Histogram = one.numbers["metrics"][metric]["histogram"]
        return found

    return read


def histogram_lines(
    done: Sequence[Measured], methods: Sequence[str], source: str, sigma: float, read: Reading
) -> tuple[Line, ...]:
    """A line for each method: the share of all its images in each fifth of a decade; places are powers of ten.

    Guarantees
        All lines have the same places, so that a place means the same bin; what has no logarithm is in none of them.
    """
    drawn = {
        method: [_shares(read(one), int(one.numbers["examples"])) for one in repetitions(done, Model(method, source, sigma))]
        for method in methods
    }
    known = {number for each in drawn.values() for shares in each for number in shares}
    numbers = range(min(known, default=0), max(known, default=0) + 1)
    places = tuple((number + 0.5) * _MERGED / _BINS_PER_DECADE for number in numbers)
    return tuple(
        method_line(method, places, tuple(tuple(shares.get(number, 0.0) for shares in each) for number in numbers))
        for method, each in drawn.items()
    )


def method_line(method: str, places: tuple[float, ...], samples: tuple[tuple[float, ...], ...]) -> Line:
    """A line in the look of its method, the same in all figures of metrics."""
    known = METHODS[method]
    kind = "sound" if method == HOUSE else "plain" if known.augmented else "weaker"
    return Line(known.label, kind, EVERY.index(method), places, samples, marked=False)


def _shares(histogram: Histogram, total: int) -> dict[int, float]:
    """In per cent of all images, by the number of the bin that is drawn."""
    shares: dict[int, float] = {}
    for edge, count in zip(histogram["edges"], histogram["counts"], strict=False):  # one edge more than bins
        number = round(math.log10(edge) * _BINS_PER_DECADE) // _MERGED
        shares[number] = shares.get(number, 0.0) + 100 * count / total
    return shares
