"""Where a step's gradient comes from: clipped, summed and noised under a plan, or plainly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twinproof.privacy.plan import PrivateExecution
from twinproof.privacy.step_randomness import step_randomness
from twinproof.training.batching import Batching
from twinproof.training.pass_mode import ONE_BY_ONE, PassMode
from twinproof.training.per_example.path import PerExamplePath, RecordLoss
from twinproof.training.records import DeviceRecords
from twinproof.training.step_sums import ClippedPass, DeviceStepSums, HostStepSums, StepSums

# Steps whose draws a GPU may prepare together where no ledger sets the limit.
_AHEAD = 100


@dataclass(frozen=True, eq=False)
class StepDiagnostics:
    """What a step saw of the training records. Sensitive: it goes to ``private/`` and nowhere else.

    ``counts`` lies on the device: reading it waits until the step is done, so the loop leaves it alone.
    """

    step: int
    drawn: int
    counts: Tensor

    @property
    def clipped(self) -> int:
        """How many gradients exceeded the bound."""
        return int(self.counts[0])

    @property
    def non_finite(self) -> int:
        """How many gradients were NaN or infinite, and were left out."""
        return int(self.counts[1])

    def as_dict(self) -> dict[str, int]:
        """For the owner's file."""
        return {"step": self.step, "drawn": self.drawn, "clipped": self.clipped, "non_finite": self.non_finite}


class GradientSource(ABC):
    """Gives the gradient of each step; the loop asks for nothing else."""

    last: StepDiagnostics | None = None
    pass_size: int | None = None  # records of one pass, where a resumed run must keep to it

    @abstractmethod
    def gradient(self, step: int) -> dict[str, Tensor]:
        """The gradient by parameter name."""


class PrivateGradients(GradientSource):
    """Per-example gradients of all copies, averaged, clipped, summed in float64 and released through the plan."""

    def __init__(
        self,
        execution: PrivateExecution,
        path: PerExamplePath,
        batching: Batching,
        shapes: Mapping[str, Tensor],
        mode: PassMode = ONE_BY_ONE,
    ) -> None:
        self._execution = execution
        self.pass_size = batching.physical_batch
        work = ClippedPass(path, execution.clip_weights)
        self._sums: StepSums = (
            DeviceStepSums(work, batching, shapes)
            if mode.capture
            else HostStepSums(work, batching, shapes, workers=mode.workers)
        )

    def gradient(self, step: int) -> dict[str, Tensor]:
        """One step of DP-SGD: a Poisson draw, the clipped sum over it, noise, a constant divisor."""
        draw = self._execution.draw(step)
        found = self._sums.of(draw.indices, step)
        self.last = StepDiagnostics(step, len(draw.indices), found.counts)
        return self._execution.release(draw, found.by_name)


class PlainGradients(GradientSource):
    """The ordinary gradient of a Poisson batch: no clipping, no noise, no privacy."""

    def __init__(self, model: nn.Module, loss: RecordLoss, batching: Batching, *, sample_rate: float, divisor: float) -> None:
        self._model = model
        self._loss = torch.func.vmap(loss, randomness="different")
        self._batching = batching
        records = batching.records
        self._randomness = step_randomness(
            batching.key, records.device, records=len(records), sample_rate=sample_rate, parameters=0
        )
        self._divisor = divisor

    @property
    def records(self) -> DeviceRecords:
        """All records, for who draws them otherwise."""
        return self._batching.records

    def gradient(self, step: int) -> dict[str, Tensor]:
        """Sum of the drawn records' gradients over the expected batch size."""
        indices = self._randomness.sample(step, announced=step + _AHEAD)
        parameters = {name: value for name, value in self._model.named_parameters() if value.requires_grad}
        sums = {name: torch.zeros_like(value) for name, value in parameters.items()}
        for number, batch in enumerate(self._batching.passes(indices)):
            copies = self._batching.copies(batch.inputs, step, number)
            with self._batching.layers_seeded(step, number):
                logits = self._model(copies.flatten(0, 1)).unflatten(0, copies.shape[:2])
                losses = torch.where(batch.present, self._loss(logits, batch.labels), 0)
            for name, value in zip(sums, torch.autograd.grad(losses.sum(), list(parameters.values())), strict=True):
                sums[name] += value / self._divisor
        self.last = StepDiagnostics(step, len(indices), torch.zeros(2, dtype=torch.int64))
        return sums
