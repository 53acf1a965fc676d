"""All metrics of a network's examples, and of a run's test set with their relation to its certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from twinproof.certification.record import find_certification
from twinproof.compute.devices import resolve_device
from twinproof.data.record import Dataset
from twinproof.errors import ConfigError, ModelError, RunError
from twinproof.progress import Progress, Silent
from twinproof.runs.records import Certificate
from twinproof.runs.run import Run
from twinproof_papers.cell import Numbers
from twinproof_papers.example_metrics.curvature import Iteration, input_gradient_norms, input_hessian_norms
from twinproof_papers.example_metrics.lipschitz import LipschitzEstimates, LipschitzSettings, local_lipschitz
from twinproof_papers.example_metrics.relation import (
    ExampleMetrics,
    MetricRelation,
    log_histogram,
    measured_metrics,
    metric_values,
    relate,
)
from twinproof_papers.example_metrics.subject import penultimate
from twinproof_papers.smoothing import Smoothing, certified_copies, sigma_name

_STAGES = 4


@dataclass(frozen=True)
class MetricSettings:
    """Everything that the numbers depend on, besides the network and the inputs."""

    hessian: Iteration = field(default_factory=Iteration)
    lipschitz: LipschitzSettings = field(default_factory=LipschitzSettings)


@dataclass(frozen=True)
class MeasuredRun:
    """What ``measure_run`` found; no relations where the run is not certified."""

    settings: MetricSettings
    examples: tuple[ExampleMetrics, ...]
    relations: tuple[MetricRelation, ...]

    def summary(self) -> dict[str, Any]:
        """Plain JSON values: settings, for each metric its mean, median, extremes and histogram, and the relations."""
        return {
            "settings": asdict(self.settings),
            "examples": len(self.examples),
            "not_converged": sum(not example.hessian_converged for example in self.examples),
            "metrics": {name: _described(self.examples, name) for name in measured_metrics(self.examples)},
            "radius": {relation.metric: relation.as_dict() for relation in self.relations},
        }


def measure_examples(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    settings: MetricSettings | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> list[ExampleMetrics]:
    """Every metric at every input (floats in [0, 1]); examples are numbered from 0. ``model`` is left as it was found.

    The penultimate layer is measured where it can be found (``penultimate``), else its fields are None. ``batch_size`` None
    is what suits the device (``rows_at_once``).

    A number is a function of its own example and its place: batches change it by the rounding of the network's arithmetic
    alone. That is a few digits behind the fifth in float32, but for the descending ``_code`` loops, which magnify it.
    """
    chosen, teller = settings or MetricSettings(), progress or Silent()
    teller.start("metrics", _STAGES)
    slopes = input_gradient_norms(model, inputs, labels, batch_size=batch_size)
    teller.advance()
    bends = input_hessian_norms(model, inputs, labels, settings=chosen.hessian, batch_size=batch_size)
    teller.advance()
    moves = local_lipschitz(model, inputs, settings=chosen.lipschitz, batch_size=batch_size)
    teller.advance()
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
    teller.advance()
    return [ExampleMetrics(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def measure_run(
    run: Run,
    dataset: Dataset,
    *,
    limit: int | None = None,
    device: str = "auto",
    settings: MetricSettings | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> MeasuredRun:
    """Measures the first ``limit`` test inputs of ``run`` (None: all), and relates them to its certificates, if it has any."""
    if limit is not None and limit < 1:
        raise ConfigError("there is nothing to measure", where="limit", got=limit, wanted="at least 1 input")
    run.refuse_other_data(dataset)
    certificates = _certificates(run)
    chosen = settings or MetricSettings()
    stored = torch.from_numpy(dataset.test.inputs[:limit].astype(np.float32))
    labels = torch.from_numpy(dataset.test.labels[:limit].copy())
    model = run.model(resolve_device(device))
    examples = measure_examples(
        model, stored / dataset.levels, labels, settings=chosen, batch_size=batch_size, progress=progress
    )
    measured = {example.index for example in examples}
    overlaps = any(certificate.index in measured for certificate in certificates)
    return MeasuredRun(chosen, tuple(examples), relate(examples, certificates) if overlaps else ())


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


def _features(model: nn.Module) -> nn.Sequential | None:
    try:
        return penultimate(model)
    except ModelError:  # a network that hides its layers still has all the other metrics
        return None


def _lipschitz_columns(name: str, found: LipschitzEstimates) -> dict[str, list[float]]:
    names = {"search": name, "loop": f"{name}_loop", "code": f"{name}_code"}
    return {names[part.name]: getattr(found, part.name).tolist() for part in fields(found)}


def _described(examples: Sequence[ExampleMetrics], metric: str) -> dict[str, Any]:
    values = metric_values(examples, metric)
    return {
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "smallest": float(values.min()),
        "largest": float(values.max()),
        "histogram": log_histogram(values).as_dict(),
    }


KIND = "example metrics"


@dataclass(frozen=True)
class ExampleMeasurement:
    """The metrics of the images that ``after`` certified, with the settings of ``twinproof.evaluation.example_metrics``."""

    after: Smoothing

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; the settings of the metrics are written out, so that another default is another cell."""
        return {"kind": KIND, "after": self.after.as_dict(), "settings": asdict(MetricSettings())}

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> Numbers:
        """Measures ``run`` once, and relates it to its certificates at every sigma."""
        measured = measure_run(run, dataset, limit=self.after.limit, device=device, settings=MetricSettings())
        copies = certified_copies(run, self.after.sigmas)
        summary = measured.summary()
        return {
            "clean": run.record["accuracy"]["value"],
            "examples": summary["examples"],
            "not_converged": summary["not_converged"],
            "metrics": summary["metrics"],
            "radius": {
                sigma_name(sigma): {
                    relation.metric: relation.as_dict() for relation in relate(measured.examples, _certificates(copy))
                }
                for sigma, copy in copies.items()
            },
        }

    def words(self) -> str:
        """Those of the certificates."""
        return self.after.words()
