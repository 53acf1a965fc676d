"""Where a step's gradient comes from: clipped, summed and noised under a plan, or plainly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twinproof.privacy.plan import PrivateExecution
from twinproof.privacy.sampling import poisson_sample
from twinproof.randomness import Key
from twinproof.training.augmentation import Augmentation
from twinproof.training.per_example.path import PerExamplePath, RecordLoss
from twinproof.training.records import DeviceRecords


@dataclass(frozen=True)
class StepDiagnostics:
    """What a step saw of the training records. Sensitive: it goes to ``private/`` and nowhere else."""

    step: int
    drawn: int
    clipped: int
    non_finite: int


class GradientSource(ABC):
    """Gives the gradient of each step; the loop asks for nothing else."""

    last: StepDiagnostics | None = None

    @abstractmethod
    def gradient(self, step: int) -> dict[str, Tensor]:
        """The gradient by parameter name."""


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Layers that draw (dropout) take their numbers from the run's key, so that a resumed run draws the same."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


@dataclass(frozen=True)
class Batching:
    """The records, how their copies are made, and how many records one pass holds."""

    records: DeviceRecords
    augmentation: Augmentation
    physical_batch: int
    key: Key

    def copies(self, inputs: Tensor, step: int, number: int) -> Tensor:
        """The copies of a pass, from noise that belongs to this step and pass alone."""
        generator = torch.Generator(self.records.device)
        generator.manual_seed(self.key.seed("augmentation", step, number))
        return self.augmentation(inputs, generator)


class PrivateGradients(GradientSource):
    """Per-example gradients of all copies, averaged, clipped, summed in float64 and released through the plan."""

    def __init__(
        self, execution: PrivateExecution, path: PerExamplePath, batching: Batching, shapes: dict[str, Tensor]
    ) -> None:
        self._execution = execution
        self._path = path
        self._batching = batching
        self._shapes = shapes

    def gradient(self, step: int) -> dict[str, Tensor]:
        """One step of DP-SGD: a Poisson draw, the clipped sum over it, noise, a constant divisor."""
        draw = self._execution.draw(step)
        device = self._batching.records.device
        sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in self._shapes.items()}
        clipped = non_finite = 0
        for number, batch in enumerate(self._batching.records.passes(draw.indices, self._batching.physical_batch)):
            copies = self._batching.copies(batch.inputs, step, number)
            with _seeded(self._batching.key.seed("layers", step, number), device):
                gradients = self._path.gradients(copies, batch.labels)
            norms = gradients.squared_norms()
            weights = self._execution.clip_weights(norms) * batch.present
            broken = ~torch.isfinite(norms)
            any_broken = bool(broken.any())
            for name, value in gradients.by_name.items():
                sums[name] += (value.without(broken) if any_broken else value).weighted_sum(weights)
            clipped += int(((weights < 1) & batch.present & ~broken).sum())
            non_finite += int((broken & batch.present).sum())
        self.last = StepDiagnostics(step, len(draw.indices), clipped, non_finite)
        return self._execution.release(draw, sums)


class PlainGradients(GradientSource):
    """The ordinary gradient of a Poisson batch: no clipping, no noise, no privacy."""

    def __init__(self, model: nn.Module, loss: RecordLoss, batching: Batching, *, sample_rate: float, divisor: float) -> None:
        self._model = model
        self._loss = torch.func.vmap(loss, randomness="different")
        self._batching = batching
        self._sample_rate = sample_rate
        self._divisor = divisor

    def gradient(self, step: int) -> dict[str, Tensor]:
        """Sum of the drawn records' gradients over the expected batch size."""
        records = self._batching.records
        indices = poisson_sample(self._batching.key, step, records=len(records), sample_rate=self._sample_rate)
        parameters = {name: value for name, value in self._model.named_parameters() if value.requires_grad}
        sums = {name: torch.zeros_like(value) for name, value in parameters.items()}
        for number, batch in enumerate(records.passes(indices, self._batching.physical_batch)):
            copies = self._batching.copies(batch.inputs, step, number)
            with _seeded(self._batching.key.seed("layers", step, number), records.device):
                logits = self._model(copies.flatten(0, 1)).unflatten(0, copies.shape[:2])
                losses = torch.where(batch.present, self._loss(logits, batch.labels), 0)
            for name, value in zip(sums, torch.autograd.grad(losses.sum(), list(parameters.values())), strict=True):
                sums[name] += value / self._divisor
        self.last = StepDiagnostics(step, len(indices), 0, 0)
        return sums
