"""One example's metrics as a record, their histograms, and how they go with the certified radius."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from twinproof.errors import DataError
from twinproof.evaluation.certified import answered_correctly
from twinproof.runs.certificates import Certificate

Values = NDArray[np.float64]

METRICS = (
    "gradient_norm",
    "hessian_norm",
    "hessian_largest",
    "lipschitz_logits",
    "lipschitz_logits_loop",
    "lipschitz_logits_code",
    "lipschitz_penultimate",
    "lipschitz_penultimate_loop",
    "lipschitz_penultimate_code",
)
"""The numbers of an ``ExampleMetrics`` that say something about the network."""


@dataclass(frozen=True)
class ExampleMetrics:
    """What was measured at one test input, in units of the input ([0, 1]) and of the natural logarithm (loss).

    ``hessian_norm`` is the largest absolute eigenvalue, ``hessian_largest`` the largest one with its sign; an eigenvalue lies
    within each residual of its value, and ``hessian_converged`` says whether the residuals met the tolerance. Lipschitz
    constants are those of our search, of the published ``loop`` climbing as its papers say, and of its ``code``, which
    descends; None where the network's penultimate layer is unknown.
    """

    index: int
    label: int
    gradient_norm: float
    hessian_norm: float
    hessian_largest: float
    hessian_residual: float
    hessian_largest_residual: float
    hessian_converged: bool
    lipschitz_logits: float
    lipschitz_logits_loop: float
    lipschitz_logits_code: float
    lipschitz_penultimate: float | None = None
    lipschitz_penultimate_loop: float | None = None
    lipschitz_penultimate_code: float | None = None


def measured_metrics(examples: Sequence[ExampleMetrics]) -> tuple[str, ...]:
    """Those of ``METRICS`` that every example has."""
    return tuple(name for name in METRICS if all(getattr(example, name) is not None for example in examples))


def metric_values(examples: Sequence[ExampleMetrics], metric: str) -> Values:
    """One of ``measured_metrics`` of all examples, in their order."""
    return np.array([getattr(example, metric) for example in examples], dtype=np.float64)


BINS_PER_DECADE = 10
# Beyond these the powers of ten are no longer floats that grow.
_SMALLEST, _LARGEST = 1e-300, 1e300


@dataclass(frozen=True)
class LogHistogram:
    """Counts between growing ``edges`` (the last bin holds its upper edge too), and of what lies outside of them.

    Every value is counted exactly once. What has no logarithm is in ``not_positive``.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    not_positive: int
    below: int
    above: int


def log_edges(values: Values) -> tuple[float, ...]:
    """Edges 10^(k / 10) around all positive values; one decade from 1 where there are none.

    Values below 1e-300 or above 1e300 get no bins.
    """
    positive = values[(values >= _SMALLEST) & (values <= _LARGEST)]
    if len(positive) == 0:
        return _powers(0, BINS_PER_DECADE)
    low, high = math.log10(positive.min()) * BINS_PER_DECADE, math.log10(positive.max()) * BINS_PER_DECADE
    first, last = math.floor(low), math.ceil(high)
    # The power may round to the other side of the value whose logarithm it is.
    first -= 10 ** (first / BINS_PER_DECADE) > positive.min()
    last += 10 ** (last / BINS_PER_DECADE) < positive.max()
    return _powers(first, max(last, first + 1))


def log_histogram(values: Values, edges: tuple[float, ...] | None = None) -> LogHistogram:
    """The histogram of ``values`` over ``edges``, or over their own ``log_edges``."""
    chosen = log_edges(values) if edges is None else edges
    positive = values[values > 0]
    counts = np.histogram(positive, bins=np.array(chosen))[0]
    below, above = int((positive < chosen[0]).sum()), int((positive > chosen[-1]).sum())
    return LogHistogram(chosen, tuple(counts.tolist()), len(values) - len(positive), below, above)


def _powers(first: int, last: int) -> tuple[float, ...]:
    return tuple(10.0 ** (number / BINS_PER_DECADE) for number in range(first, last + 1))


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


@dataclass(frozen=True)
class MetricRelation:
    """One metric against the certified radius; ``spearman`` is None where one of the two does not vary."""

    examples: int
    spearman: float | None
    groups: tuple[RadiusGroup, ...]
    splits: tuple[RadiusSplit, ...]


def group_by_radius(values: Values, radii: Values) -> tuple[RadiusGroup, ...]:
    """The groups that are not empty, from the smallest radius: the mean of each, then its logarithm (Figure 6 of DP-CERT)."""
    # Radii have six decimals: without rounding, 0.3 / 0.1 would fall into the group below.
    numbers = np.floor(np.round(radii / GROUP_WIDTH, 9)).astype(np.int64)
    return tuple(_group(values[numbers == number], int(number)) for number in np.unique(numbers))


def split_at_radius(values: Values, radii: Values, threshold: float) -> RadiusSplit:
    """The examples on both sides of a certified radius (Figures 17 to 19 of DP-CERT)."""
    reached, edges = radii >= threshold, log_edges(values)
    inside, outside = values[reached], values[~reached]
    return RadiusSplit(threshold, log_histogram(inside, edges), log_histogram(outside, edges), _mean(inside), _mean(outside))


def spearman(values: Values, radii: Values) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None where one of the two does not vary."""
    ranks = np.stack([rankdata(values), rankdata(radii)])
    ranks -= ranks.mean(axis=1, keepdims=True)
    scale = math.sqrt(float((ranks[0] ** 2).sum()) * float((ranks[1] ** 2).sum()))
    return None if scale == 0 else max(-1.0, min(1.0, float((ranks[0] * ranks[1]).sum()) / scale))


def relate(examples: Sequence[ExampleMetrics], certificates: Sequence[Certificate]) -> dict[str, MetricRelation]:
    """Every metric against the radius, over the test inputs that have both; joined by their index.

    An abstention has radius 0. So has a wrong answer, as in the average certified radius: nothing true is certified there.
    """
    shared, radii = _joined(examples, certificates)
    return {
        name: MetricRelation(
            len(shared),
            spearman(values, radii),
            group_by_radius(values, radii),
            tuple(split_at_radius(values, radii, threshold) for threshold in THRESHOLDS),
        )
        for name in measured_metrics(shared)
        for values in [metric_values(shared, name)]
    }


def _joined(examples: Sequence[ExampleMetrics], certificates: Sequence[Certificate]) -> tuple[list[ExampleMetrics], Values]:
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
        radii.append(certificate.radius if answered_correctly(certificate) else 0.0)
    return shared, np.array(radii, dtype=np.float64)


def _group(sample: Values, number: int) -> RadiusGroup:
    mean = math.fsum(sample.tolist()) / len(sample)
    low, high = (round(edge * GROUP_WIDTH, 9) for edge in (number, number + 1))
    return RadiusGroup(low, high, len(sample), mean, math.log(mean) if mean > 0 else None)


def _mean(sample: Values) -> float | None:
    return math.fsum(sample.tolist()) / len(sample) if len(sample) else None
