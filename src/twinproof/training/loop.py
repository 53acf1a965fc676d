"""The one training loop, its gradient source and its update. It knows no paper.

Noise that DP-SGD adds in one step is still in the weights of the next ones, and no later step takes it out on purpose. An
average over many steps does: the signal of the gradients is in all of them, the noise of each in few.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.compute.devices import Captured
from twinproof.compute.ranks import ALONE, Ranks
from twinproof.errors import ConfigError
from twinproof.privacy.plan import PrivateExecution
from twinproof.privacy.step_randomness import step_randomness
from twinproof.training.distributed import clipped_over_ranks, summed_by_name
from twinproof.training.passes import ONE_BY_ONE, Batching, PassMode
from twinproof.training.per_example.paths import PerExamplePath, RecordLoss
from twinproof.training.step_sums import ClippedPass, step_sums

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
    """Per-example gradients of all copies, averaged, clipped, summed in float64 and released through the plan.

    All ``ranks`` hold the same key, draw the same records, add up their shares and the same noise, once, to the same sum.
    """

    def __init__(
        self,
        execution: PrivateExecution,
        path: PerExamplePath,
        batching: Batching,
        shapes: Mapping[str, Tensor],
        mode: PassMode = ONE_BY_ONE,
        *,
        ranks: Ranks = ALONE,
    ) -> None:
        self._execution, self._ranks = execution, ranks
        self.pass_size = batching.physical_batch
        work = ClippedPass(path, execution.clip_weights)
        self._sums = step_sums(work, replace(batching, share=ranks.share), shapes, mode)

    def gradient(self, step: int) -> dict[str, Tensor]:
        """One step of DP-SGD: a Poisson draw, the clipped sum over it, noise, a constant divisor."""
        draw = self._execution.draw(step)
        found = self._sums.of(draw.indices, step)
        if self._ranks is not ALONE:
            found = clipped_over_ranks(found, self._ranks)
        self.last = StepDiagnostics(step, len(draw.indices), found.counts)
        return self._execution.release(draw, found.by_name)


class PlainGradients(GradientSource):
    """The ordinary gradient of a Poisson batch: no clipping, no noise, no privacy."""

    def __init__(
        self,
        model: nn.Module,
        loss: RecordLoss,
        batching: Batching,
        *,
        sample_rate: float,
        divisor: float,
        ranks: Ranks = ALONE,
    ) -> None:
        self._model = model
        self._loss = torch.func.vmap(loss, randomness="different")
        self._batching = replace(batching, share=ranks.share)
        self.ranks = ranks
        self.records = records = batching.records
        self._randomness = step_randomness(
            batching.key, records.device, records=len(records), sample_rate=sample_rate, parameters=0
        )
        self._divisor = divisor

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
        if self.ranks is ALONE:
            return sums
        summed = summed_by_name(sums, self.ranks)
        return {name: summed[name].to(value.dtype) for name, value in sums.items()}


class Update:
    """Hands each step's gradients to the optimiser, in tensors that stay where they are.

    A recording reads the optimiser's settings when it is made: they must not change during a run. ``scheduled`` says that
    the learning rate will; then nothing is recorded, and the optimiser's few kernels are started one by one.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, scheduled: bool = False) -> None:
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        device = next(iter(self._parameters.values())).device

        def step() -> None:
            optimizer.step()

        self._step = step if scheduled else Captured(step, device)

    def __call__(self, gradients: Mapping[str, Tensor]) -> None:
        """One update."""
        targets = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        torch._foreach_copy_(targets, [gradients[name] for name in self._parameters])
        self._step()


Rate = Callable[[int], float]
"""The learning rate of a step, counted from 0."""


class Schedule(StrEnum):
    """The shapes of the curve from the first step to the last."""

    CONSTANT = "constant"
    COSINE = "cosine"  # half a wave: slow, fast, slow
    LINEAR = "linear"


def rate_of(schedule: Schedule, learning_rate: float, steps: int) -> Rate | None:
    """The learning rate of every step of a run of ``steps``: all of it in step 0, and more than nothing in the last.

    None where it never changes. A schedule that looks at a training loss would have to be paid for.
    """
    match schedule:
        case Schedule.CONSTANT:
            return None
        case Schedule.COSINE:
            return lambda step: learning_rate * (0.5 * (1 + math.cos(math.pi * (step / steps))))
        case Schedule.LINEAR:
            return lambda step: learning_rate * (1 - step / steps)


class WeightAverage:
    """Weights of all steps, each counted ``decay`` times as much as that of the step after it; the counts add up to 1.

    With w_1, w_2, ... the weights after each step, the average after t steps is the sum of decay^(t-i) w_i over the sum of
    decay^(t-i), i = 1..t. The initial weights, which are random, are in none of it. It is kept in the weights' own dtype, on
    their device; numbers that are no trained parameters (buffers) are not averaged.

    Guarantees
        - A function of the released iterates of the private steps and of nothing else: post-processing, which costs no
          privacy and changes no number of the plan.
        - Training continues from the last weights, to the same bits as without an average.
        - Average and step number are its whole state: a resumed run ends with the same bits.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        if not 0 <= decay < 1:
            raise ConfigError(
                "the decay is too large or negative", where="averaging", got=decay, wanted="at least 0 and below 1"
            )
        self._decay = decay
        named = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self._names = list(named)
        self._weights: list[Tensor] = list(named.values())
        self._average = [value.detach().clone() for value in self._weights]

    @torch.no_grad()
    def add(self, done: int) -> None:
        """Takes in the weights after ``done`` steps, 1 or more; each number once, in order."""
        # In the first step the share is exactly 1, so that what the average was before does not matter.
        share = (1 - self._decay) / (1 - self._decay**done)
        torch._foreach_lerp_(self._average, self._weights, share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside, the network has the averaged weights; afterwards its own again, to the bit and at the same addresses."""
        with torch.no_grad():
            own = [value.detach().clone() for value in self._weights]
            torch._foreach_copy_(self._weights, self._average)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, own)

    def state(self) -> dict[str, Tensor]:
        """The average by the names of the parameters, for a checkpoint."""
        return dict(zip(self._names, self._average, strict=True))

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Restores a checkpoint's average; KeyError where a parameter is missing in it, and nothing changed."""
        found = [state[name] for name in self._names]
        for value, stored in zip(self._average, found, strict=True):
            value.copy_(stored)


def run_loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: GradientSource,
    *,
    first: int,
    steps: int,
    after_step: Callable[[int], None],
    rate: Rate | None = None,
    average: WeightAverage | None = None,
) -> None:
    """Takes the steps first..steps-1; ``after_step`` is called with the number of steps taken in all.

    ``rate`` gives each step's learning rate instead of the optimiser's; ``average`` takes in the weights before that call.
    """
    update = Update(model, optimizer, scheduled=rate is not None)
    for step in range(first, steps):
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
        update(source.gradient(step))
        if average is not None:
            average.add(step + 1)
        after_step(step + 1)


def mean_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy averaged over the record's copies: ``logits`` (copies, classes), ``label`` a scalar."""
    return F.cross_entropy(logits, label.expand(logits.shape[0]))
