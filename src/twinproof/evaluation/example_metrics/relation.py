"""How a metric goes with the certified radius: groups by radius, both sides of a radius, and rank correlation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from twinproof.errors import ConfigError, DataError
from twinproof.evaluation.certified import answered_correctly
from twinproof.evaluation.example_metrics.histogram import LogHistogram, finite_values, log_edges, log_histogram
from twinproof.evaluation.example_metrics.record import ExampleMetrics, Values, measured_metrics, metric_values
from twinproof.runs.certificates import Certificate

GROUP_WIDTH = 0.1
THRESHOLDS = (0.5, 1.0, 1.5)
"""Radii at which Figures 17 to 19 of DP-CERT divide the test set."""


@dataclass(frozen=True)
class RadiusGroup:
    """Examples with a radius in [low, high): how many, the mean of the metric, its natural logarithm (None unless positive)."""

    low: float
    high: float
    count: int
    mean: float
    log_mean: float | None


@dataclass(frozen=True)
class RadiusSplit:
    """The metric's histograms, over the same edges, of examples with a radius of at least ``threshold`` and of the others."""

    threshold: float
    at_least: LogHistogram
    below: LogHistogram
    mean_at_least: float | None
    mean_below: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "at_least": self.at_least.as_dict(), "below": self.below.as_dict()}


@dataclass(frozen=True)
class MetricRelation:
    """One metric against the certified radius; ``spearman`` is None where one of the two does not vary."""

    metric: str
    examples: int
    spearman: float | None
    groups: tuple[RadiusGroup, ...]
    splits: tuple[RadiusSplit, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        groups, splits = [asdict(group) for group in self.groups], [split.as_dict() for split in self.splits]
        return {"examples": self.examples, "spearman": self.spearman, "groups": groups, "splits": splits}


def group_by_radius(values: ArrayLike, radii: ArrayLike, width: float = GROUP_WIDTH) -> tuple[RadiusGroup, ...]:
    """The groups that are not empty, from the smallest radius: the mean of each, then its logarithm (Figure 6 of DP-CERT)."""
    if not (math.isfinite(width) and width > 0):
        raise ConfigError("the width of the groups cannot be used", where="width", got=width, wanted="above 0, finite")
    sample, distances = _paired(values, radii)
    # Radii have six decimals: without rounding, 0.3 / 0.1 would fall into the group below.
    numbers = np.floor(np.round(distances / width, 9)).astype(np.int64)
    return tuple(_group(sample[numbers == number], int(number), width) for number in np.unique(numbers))


def split_at_radius(values: ArrayLike, radii: ArrayLike, threshold: float) -> RadiusSplit:
    """The examples on both sides of a certified radius (Figures 17 to 19 of DP-CERT)."""
    sample, distances = _paired(values, radii)
    reached = distances >= threshold
    edges = log_edges(sample)
    inside, outside = sample[reached], sample[~reached]
    return RadiusSplit(threshold, log_histogram(inside, edges), log_histogram(outside, edges), _mean(inside), _mean(outside))


def spearman(values: ArrayLike, radii: ArrayLike) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None where one of the two does not vary."""
    sample, distances = _paired(values, radii)
    ranks = np.stack([rankdata(sample), rankdata(distances)])
    ranks -= ranks.mean(axis=1, keepdims=True)
    scale = math.sqrt(float((ranks[0] ** 2).sum()) * float((ranks[1] ** 2).sum()))
    return None if scale == 0 else max(-1.0, min(1.0, float((ranks[0] * ranks[1]).sum()) / scale))


def relate(
    examples: Sequence[ExampleMetrics],
    certificates: Sequence[Certificate],
    *,
    width: float = GROUP_WIDTH,
    thresholds: Sequence[float] = THRESHOLDS,
    wrong_as_zero: bool = True,
) -> tuple[MetricRelation, ...]:
    """Every metric against the radius, over the test inputs that have both; joined by their index.

    An abstention has radius 0. So has a wrong answer, as in the average certified radius: nothing true is certified there;
    ``wrong_as_zero=False`` keeps its radius.
    """
    shared, radii = _joined(examples, certificates, wrong_as_zero)
    return tuple(
        MetricRelation(
            name,
            len(shared),
            spearman(values, radii),
            group_by_radius(values, radii, width),
            tuple(split_at_radius(values, radii, threshold) for threshold in thresholds),
        )
        for name in measured_metrics(shared)
        for values in [metric_values(shared, name)]
    )


def _joined(
    examples: Sequence[ExampleMetrics], certificates: Sequence[Certificate], wrong_as_zero: bool
) -> tuple[list[ExampleMetrics], Values]:
    by_index = {certificate.index: certificate for certificate in certificates}
    shared = [example for example in examples if example.index in by_index]
    if not shared:
        raise DataError(
            "no example was both measured and certified",
            got=f"{len(examples)} measured, {len(certificates)} certified",
            wanted="at least one in common",
            fix="certify the run: twinproof certify RUN",
        )
    radii = []
    for example in shared:
        certificate = by_index[example.index]
        if certificate.label != example.label:
            raise DataError(
                "metrics and certificates are of different data",
                where=f"test input {example.index}",
                got=f"label {example.label}",
                wanted=f"label {certificate.label}, as certified",
            )
        counts = answered_correctly(certificate) or not wrong_as_zero
        radii.append(certificate.radius if counts else 0.0)
    return shared, np.array(radii, dtype=np.float64)


def _group(sample: Values, number: int, width: float) -> RadiusGroup:
    mean = math.fsum(sample.tolist()) / len(sample)
    low, high = (round(edge * width, 9) for edge in (number, number + 1))
    return RadiusGroup(low, high, len(sample), mean, math.log(mean) if mean > 0 else None)


def _mean(sample: Values) -> float | None:
    return math.fsum(sample.tolist()) / len(sample) if len(sample) else None


def _paired(values: ArrayLike, radii: ArrayLike) -> tuple[Values, Values]:
    sample, distances = finite_values(values), finite_values(radii)
    if len(sample) != len(distances) or len(sample) == 0:
        got = f"{len(sample)} values, {len(distances)} radii"
        raise DataError("values and radii do not fit together", got=got, wanted="one radius for each value, at least one")
    if (distances < 0).any():
        raise DataError("a radius is negative", where="radii", got=float(distances.min()), wanted="0 or more")
    return sample, distances
