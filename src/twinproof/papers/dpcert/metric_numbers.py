"""What a results file tells of a cell of metrics: all that its figures show, and a few words of the rest.

A cell holds nine metrics at up to three sigmas, each with seven histograms on edges of its own: some 100 kB. A figure is about
one sigma and draws three of the metrics. Bins lie on one grid, so that the number of the first one says where all are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from twinproof.papers.cell_store import Measured
from twinproof.papers.measurement import Numbers
from twinproof.papers.smoothing import sigma_name

BINS_PER_DECADE = 10
_DIGITS = 6  # of a mean or a correlation; the smallest difference that means anything is in the third
_OUTSIDE = ("not_positive", "below", "above")


def told_numbers(done: Sequence[Measured], sigma: float, shown: Sequence[str]) -> dict[str, Numbers]:
    """By name of the cell, its numbers at ``sigma``; metrics that are not ``shown`` without their relation to the radius.

    Guarantees
        Counts of images are exact. From the numbers of a metric that is shown follows every point that a figure draws of it.
    """
    return {one.cell.name: _told(one.numbers, sigma_name(sigma), shown) for one in done}


def _told(numbers: Numbers, sigma: str, shown: Sequence[str]) -> Numbers:
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

    Guarantees
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
