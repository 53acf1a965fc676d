"""All metrics of a network's examples, their histograms, and how they go with the certified radius."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor, nn

from twinproof.certification.method import find_certification
from twinproof.compute.devices import resolve_device
from twinproof.data.record import Dataset
from twinproof.errors import DataError, ModelError, RunError
from twinproof.evaluation.certified import answered_correctly
from twinproof.runs.records import Certificate
from twinproof.runs.run import Run
from twinproof_papers.cell import Numbers
from twinproof_papers.example_metrics.curvature import Iteration, input_gradient_norms, input_hessian_norms
from twinproof_papers.example_metrics.lipschitz import LipschitzEstimates, LipschitzSettings, local_lipschitz
from twinproof_papers.example_metrics.subject import penultimate
from twinproof_papers.smoothing import Smoothing, certified_copies, sigma_name

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
    return np.array([getattr(example, metric) for example in examples], dtype=np.float64)


@dataclass(frozen=True)
class MetricSettings:
    """Everything that the numbers depend on, besides the network and the inputs."""

    hessian: Iteration = field(default_factory=Iteration)
    lipschitz: LipschitzSettings = field(default_factory=LipschitzSettings)


def measure_examples(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, batch_size: int | None = None
) -> list[ExampleMetrics]:
    """Every metric at every input (floats in [0, 1]); examples are numbered from 0. ``model`` is left as it was found.

    The penultimate layer is measured where it can be found (``penultimate``), else its fields are None. ``batch_size`` None
    is what suits the device (``rows_at_once``).

    A number is a function of its own example and its place: batches change it by the rounding of the network's arithmetic
    alone. That is a few digits behind the fifth in float32, but for the descending ``_code`` loops, which magnify it.
    """
    chosen = MetricSettings()
    slopes = input_gradient_norms(model, inputs, labels, batch_size=batch_size)
    bends = input_hessian_norms(model, inputs, labels, settings=chosen.hessian, batch_size=batch_size)
    moves = local_lipschitz(model, inputs, settings=chosen.lipschitz, batch_size=batch_size)
    columns = {
        "index": list(range(len(labels))),
        "label": labels.tolist(),
        "gradient_norm": slopes.tolist(),
        "hessian_norm": bends.spectral.tolist(),
        "hessian_largest": bends.largest.tolist(),
        "hessian_residual": bends.spectral_residual.tolist(),
        "hessian_largest_residual": bends.largest_residual.tolist(),
        "hessian_converged": bends.converged.tolist(),
        **_lipschitz_columns("lipschitz_logits", moves),
    }
    features = _features(model)
    if features is not None:
        inner = local_lipschitz(features, inputs, settings=chosen.lipschitz, batch_size=batch_size)
        columns |= _lipschitz_columns("lipschitz_penultimate", inner)
    return [ExampleMetrics(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _features(model: nn.Module) -> nn.Sequential | None:
    try:
        return penultimate(model)
    except ModelError:  # a network that hides its layers still has all the other metrics
        return None


def _lipschitz_columns(name: str, found: LipschitzEstimates) -> dict[str, list[float]]:
    names = {"search": name, "loop": f"{name}_loop", "code": f"{name}_code"}
    return {names[part.name]: getattr(found, part.name).tolist() for part in fields(found)}


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


KIND = "example metrics"


@dataclass(frozen=True)
class ExampleMeasurement:
    """The metrics of the images that ``after`` certified."""

    after: Smoothing

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; the settings of the metrics are written out, so that another default is another cell."""
        return {"kind": KIND, "after": self.after.as_dict(), "settings": asdict(MetricSettings())}

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> Numbers:
        run.refuse_other_data(dataset)
        stored = torch.from_numpy(dataset.test.inputs[: self.after.limit].astype(np.float32))
        labels = torch.from_numpy(dataset.test.labels[: self.after.limit].copy())
        examples = measure_examples(run.model(resolve_device(device)), stored / dataset.levels, labels)
        return {
            "clean": run.record["accuracy"]["value"],
            "examples": len(examples),
            "not_converged": sum(not example.hessian_converged for example in examples),
            "metrics": {name: _described(examples, name) for name in measured_metrics(examples)},
            "radius": {
                sigma_name(sigma): {name: asdict(found) for name, found in relate(examples, _certificates(copy)).items()}
                for sigma, copy in certified_copies(run, self.after.sigmas).items()
            },
        }

    def words(self) -> str:
        return self.after.words()


def _certificates(run: Run) -> list[Certificate]:
    certified = find_certification(run.root)
    if certified is None:
        return []
    if not certified.is_of(run):
        raise RunError(
            "the certificates are of other weights",
            where=str(certified.path),
            got=certified.settings.network.model_sha256[:12],
            wanted=run.model_sha256[:12],
            fix="certify the run again: twinproof certify RUN --overwrite",
        )
    return certified.certificates


def _described(examples: Sequence[ExampleMetrics], metric: str) -> dict[str, Any]:
    values = metric_values(examples, metric)
    return {
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "smallest": float(values.min()),
        "largest": float(values.max()),
        "histogram": asdict(log_histogram(values)),
    }
