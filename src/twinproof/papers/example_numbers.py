"""The metrics of a certified model's test images, as histograms and as relations to the radius."""

from __future__ import annotations

from twinproof.certification.record import certifications
from twinproof.data.record import Dataset
from twinproof.evaluation.example_metrics import MetricSettings, measure_run, relate
from twinproof.papers.certified_copies import certified_copies
from twinproof.papers.example_metrics import ExampleMeasurement
from twinproof.papers.measurement import Numbers
from twinproof.papers.smoothing import sigma_name
from twinproof.runs.certificates import Certificate
from twinproof.runs.run import Run


def example_numbers(measurement: ExampleMeasurement, run: Run, dataset: Dataset, *, device: str) -> Numbers:
    """What was found at each image, summed up: no number of a single image is kept."""
    measured = measure_run(run, dataset, limit=measurement.after.limit, device=device, settings=MetricSettings())
    copies = certified_copies(run, measurement.after.sigmas)
    summary = measured.summary()
    return {
        "clean": run.record["accuracy"]["value"],
        "examples": summary["examples"],
        "not_converged": summary["not_converged"],
        "metrics": summary["metrics"],
        "radius": {
            sigma_name(sigma): {
                relation.metric: relation.as_dict() for relation in relate(measured.examples, certificates_of(copy))
            }
            for sigma, copy in copies.items()
        },
    }


def certificates_of(run: Run) -> list[Certificate]:
    """The lines of the one certification of a copy."""
    return [one for found in certifications(run.root).values() for one in found.certificates]
