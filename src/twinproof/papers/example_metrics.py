"""Measuring each test image of a certified model: slope, curvature, local Lipschitz constants, and the radius beside them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from twinproof.data.record import Dataset
from twinproof.evaluation.example_metrics import MetricSettings
from twinproof.papers.measurement import Numbers
from twinproof.papers.smoothing import Smoothing
from twinproof.runs.run import Run

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
        from twinproof.papers.example_numbers import example_numbers

        return example_numbers(self, run, dataset, device=device)

    def words(self) -> str:
        """Those of the certificates."""
        return self.after.words()
