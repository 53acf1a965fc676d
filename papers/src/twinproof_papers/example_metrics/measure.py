"""All metrics of a network's examples, and their relation to a run's certificates."""

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
from twinproof.errors import ModelError, RunError
from twinproof.runs.certificates import Certificate
from twinproof.runs.run import Run
from twinproof_papers.cell import Numbers
from twinproof_papers.example_metrics.curvature import Iteration, input_gradient_norms, input_hessian_norms
from twinproof_papers.example_metrics.lipschitz import LipschitzEstimates, LipschitzSettings, local_lipschitz
from twinproof_papers.example_metrics.relation import (
    ExampleMetrics,
    log_histogram,
    measured_metrics,
    metric_values,
    relate,
)
from twinproof_papers.example_metrics.subject import penultimate
from twinproof_papers.smoothing import Smoothing, certified_copies, sigma_name


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
        "histogram": asdict(log_histogram(values)),
    }


KIND = "example metrics"


@dataclass(frozen=True)
class ExampleMeasurement:
    """The metrics of the images that ``after`` certified."""

    after: Smoothing

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; the settings of the metrics are written out, so that another default is another cell."""
        return {"kind": KIND, "after": self.after.as_dict(), "settings": asdict(MetricSettings())}

    def numbers(self, run: Run, dataset: Dataset, *, device: str) -> Numbers:
        """Measures ``run`` once, and relates it to its certificates at every sigma."""
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
        """Those of the certificates."""
        return self.after.words()
