"""One example's metrics as a record, their histograms, and how they go with the certified radius."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from twinproof.errors import ConfigError, DataError
from twinproof.evaluation.certified import answered_correctly
from twinproof.runs.records import Certificate

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

    def as_dict(self) -> dict[str, float | int | bool | None]:
        """Plain JSON values."""
        return asdict(self)


def measured_metrics(examples: Sequence[ExampleMetrics]) -> tuple[str, ...]:
    """Those of ``METRICS`` that every example has."""
    return tuple(name for name in METRICS if all(getattr(example, name) is not None for example in examples))


def metric_values(examples: Sequence[ExampleMetrics], metric: str) -> Values:
    """One metric of all examples, in their order."""
    if metric not in METRICS:
        raise ConfigError("unknown metric", where="metric", got=metric, wanted=", ".join(METRICS))
    if not examples:
        raise DataError("there are no examples", where=metric, got=0, wanted="at least one")
    values = [getattr(example, metric) for example in examples]
    if None in values:
        raise DataError(
            "this metric was not measured",
            where=metric,
            got=f"no number for example {examples[values.index(None)].index}",
            wanted="a number for every example",
            fix="measure a Sequential that ends with a Linear layer",
        )
    return np.array(values, dtype=np.float64)


BINS_PER_DECADE = 10
# Beyond these the powers of ten are no longer floats that grow.
_SMALLEST, _LARGEST = 1e-300, 1e300


@dataclass(frozen=True)
class LogHistogram:
    """Counts between growing ``edges`` (the last bin holds its upper edge too), and of what lies outside of them.

    Every value is counted exactly once: ``total`` is their number. What has no logarithm is in ``not_positive``.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    not_positive: int
    below: int
    above: int

    @property
    def total(self) -> int:
        """How many values were counted."""
        return sum(self.counts) + self.not_positive + self.below + self.above

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        record = asdict(self)
        return {**record, "edges": list(self.edges), "counts": list(self.counts)}


def log_edges(*samples: ArrayLike, per_decade: int = BINS_PER_DECADE) -> tuple[float, ...]:
    """Edges 10^(k / per_decade) around all positive values of all ``samples``; one decade from 1 where there are none.

    Values below 1e-300 or above 1e300 get no bins.
    """
    if per_decade < 1:
        raise ConfigError("there are no bins", where="per_decade", got=per_decade, wanted="at least 1")
    joined = np.concatenate([finite_values(sample) for sample in samples]) if samples else np.empty(0)
    positive = joined[(joined >= _SMALLEST) & (joined <= _LARGEST)]
    if len(positive) == 0:
        return _powers(0, per_decade, per_decade)
    low, high = math.log10(positive.min()) * per_decade, math.log10(positive.max()) * per_decade
    first, last = math.floor(low), math.ceil(high)
    # The power may round to the other side of the value whose logarithm it is.
    first -= 10 ** (first / per_decade) > positive.min()
    last += 10 ** (last / per_decade) < positive.max()
    return _powers(first, max(last, first + 1), per_decade)


def log_histogram(values: ArrayLike, edges: tuple[float, ...] | None = None) -> LogHistogram:
    """The histogram of ``values`` over ``edges``, or over their own ``log_edges``."""
    sample = finite_values(values)
    chosen = log_edges(sample) if edges is None else edges
    if len(chosen) < 2 or chosen[0] <= 0 or any(high <= low for low, high in pairwise(chosen)):
        got = f"{len(chosen)} edges, {', '.join(f'{edge:g}' for edge in chosen[:4])}..."
        raise ConfigError("these are no edges of bins", where="edges", got=got, wanted="two or more, growing, above 0")
    positive = sample[sample > 0]
    counts = np.histogram(positive, bins=np.array(chosen))[0]
    below, above = int((positive < chosen[0]).sum()), int((positive > chosen[-1]).sum())
    return LogHistogram(chosen, tuple(int(count) for count in counts), len(sample) - len(positive), below, above)


def finite_values(values: ArrayLike) -> Values:
    """``values`` as one column of finite numbers; anything else is refused."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not np.isfinite(sample).all():
        raise DataError(
            "these values cannot be summarised",
            where="values",
            got=f"shape {sample.shape}, {int((~np.isfinite(sample)).sum())} not finite",
            wanted="one column of finite numbers",
        )
    return sample


def _powers(first: int, last: int, per_decade: int) -> tuple[float, ...]:
    return tuple(10.0 ** (number / per_decade) for number in range(first, last + 1))


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
