"""What can be measured at one example: slope and curvature of its loss, local Lipschitz constants, and their use."""

from twinproof.evaluation.example_metrics.eigenvalues import Iteration
from twinproof.evaluation.example_metrics.gradient_norm import input_gradient_norms
from twinproof.evaluation.example_metrics.hessian_norm import HessianNorms, input_hessian_norms
from twinproof.evaluation.example_metrics.histogram import LogHistogram, log_edges, log_histogram
from twinproof.evaluation.example_metrics.lipschitz import LipschitzEstimates, LipschitzSettings, local_lipschitz
from twinproof.evaluation.example_metrics.measure import MeasuredRun, MetricSettings, measure_examples, measure_run
from twinproof.evaluation.example_metrics.penultimate import penultimate
from twinproof.evaluation.example_metrics.record import METRICS, ExampleMetrics, metric_values
from twinproof.evaluation.example_metrics.relation import (
    MetricRelation,
    RadiusGroup,
    RadiusSplit,
    group_by_radius,
    relate,
    spearman,
    split_at_radius,
)

__all__ = [
    "METRICS",
    "ExampleMetrics",
    "HessianNorms",
    "Iteration",
    "LipschitzEstimates",
    "LipschitzSettings",
    "LogHistogram",
    "MeasuredRun",
    "MetricRelation",
    "MetricSettings",
    "RadiusGroup",
    "RadiusSplit",
    "group_by_radius",
    "input_gradient_norms",
    "input_hessian_norms",
    "local_lipschitz",
    "log_edges",
    "log_histogram",
    "measure_examples",
    "measure_run",
    "metric_values",
    "penultimate",
    "relate",
    "spearman",
    "split_at_radius",
]
