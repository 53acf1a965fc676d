"""Looking at a batch through an objective: losses, predictions and input gradients, over draws, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from twinproof.attacks.frozen import untouched
from twinproof.attacks.norms import per_row
from twinproof.attacks.objective import Draws, Mean, Objective
from twinproof.attacks.scores import scores_of

# Rows of one pass over several draws; activations are kept for the way back, so these are fewer than in CERTIFY.
_ROWS = {"cpu": 1024, "cuda": 32_768}


@dataclass(frozen=True)
class Look:
    """What was seen at one point of each row: loss, predicted class, and the loss's gradient where it was asked for."""

    losses: Tensor
    predictions: Tensor
    gradient: Tensor | None = None


@contextmanager
def global_seed(seed: int, device: torch.device) -> Iterator[None]:
    """Seeds the generators that random layers draw from, and gives them back as they were."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if on_gpu else []):
        torch.default_generator.manual_seed(seed)
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)  # this device alone: nobody would give the others' generators back
        yield


def device_of(objective: Objective, inputs: Tensor) -> torch.device:
    """Where the network is; with the inputs, where it has no parameters."""
    parameter = next(objective.model.parameters(), None)
    return inputs.device if parameter is None else parameter.device


def class_count(objective: Objective, inputs: Tensor) -> int:
    """How many classes there are, from one row."""
    row = inputs[:1].to(device_of(objective, inputs))
    with untouched(objective.model), global_seed(0, row.device), torch.no_grad():
        return int(scores_of(objective.model, row).shape[1])


class Looker:
    """Looks at points around one batch; keeps the draws that an example's steps share.

    To be used with the network in ``untouched``.
    """

    def __init__(self, objective: Objective, inputs: Tensor, generator: torch.Generator, judge_seed: int = 0) -> None:
        self._objective, self._generator, self._judge_seed = objective, generator, judge_seed
        draws = objective.looking
        self._shared: Tensor | None = None
        if draws.shared:
            shape = (len(inputs), draws.count, *inputs.shape[1:])
            self._shared = torch.randn(shape, generator=generator, device=inputs.device, dtype=inputs.dtype).mul_(draws.sigma)

    def step(self, points: Tensor, labels: Tensor, *, predict: bool = True) -> Look:
        """Losses, gradients and, if wanted, predictions with the draws of one step; without, every prediction is 0."""
        return self._look(points, labels, self._objective.looking, self._generator, gradient=True, predict=predict)

    def judge(self, points: Tensor, labels: Tensor) -> Look:
        """Losses and predictions, every time with the same draws."""
        generator = torch.Generator(points.device).manual_seed(self._judge_seed)
        with global_seed(self._judge_seed, points.device):
            return self._look(points, labels, self._objective.judging, generator, gradient=False, predict=True)

    def _look(
        self, points: Tensor, labels: Tensor, draws: Draws, generator: torch.Generator, *, gradient: bool, predict: bool
    ) -> Look:
        """Chunk after chunk of draws; the sums of earlier chunks are all that is kept."""
        if len(points) == 0:  # not every network takes an empty batch
            return Look(points.new_empty(0), labels.new_empty(0), torch.empty_like(points) if gradient else None)
        whole: _Sum | None = None
        chunk = self._draws_at_once(points, draws)
        for first in range(0, draws.count, chunk):
            noise = self._noise(points, draws, first, min(chunk, draws.count - first), generator)
            part = self._chunk(points, labels, draws, noise, min(chunk, draws.count - first), gradient, predict)
            whole = part if whole is None else whole.plus(part, draws.mean)
        if whole is None:
            raise ValueError("an objective looks at least once")
        losses = whole.value if draws.mean is Mean.LOSS else whole.value + math.log(draws.count)
        return Look(losses, whole.tally.argmax(dim=1) if predict else torch.zeros_like(labels), whole.slope)

    def _noise(self, points: Tensor, draws: Draws, first: int, count: int, generator: torch.Generator) -> Tensor | None:
        if draws.shared and self._shared is not None:
            return self._shared[:, first : first + count]
        if draws.sigma == 0:
            return None
        shape = (len(points), count, *points.shape[1:])
        return torch.randn(shape, generator=generator, device=points.device, dtype=points.dtype).mul_(draws.sigma)

    def _chunk(
        self, points: Tensor, labels: Tensor, draws: Draws, noise: Tensor | None, count: int, gradient: bool, predict: bool
    ) -> _Sum:
        with torch.set_grad_enabled(gradient):
            leaf = points.detach().requires_grad_(gradient)
            copies = leaf.unsqueeze(1).expand(-1, count, *points.shape[1:]) if noise is None else leaf.unsqueeze(1) + noise
            scores = scores_of(self._objective.model, copies.reshape(-1, *points.shape[1:]))
            scores = scores.view(len(points), count, -1)
            logs = F.log_softmax(scores, dim=2)
            of_label = logs.gather(2, labels.view(-1, 1, 1).expand(-1, count, 1)).squeeze(2)
            value = -of_label.logsumexp(dim=1) if draws.mean is Mean.PROBABILITY else of_label.sum(dim=1) / -draws.count
            slope = torch.autograd.grad(value.sum(), leaf)[0] if gradient else None
        scores, logs = scores.detach(), logs.detach()
        tally = (_votes(scores) if draws.votes else logs.exp()).sum(dim=1) if predict else value.new_zeros(0)
        return _Sum(value.detach(), tally, slope)

    def _draws_at_once(self, points: Tensor, draws: Draws) -> int:
        rows = self._objective.rows or _ROWS["cuda" if points.device.type == "cuda" else "cpu"]
        return min(draws.count, max(1, rows // max(1, len(points))))


def _votes(scores: Tensor) -> Tensor:
    """One for the class of the highest score, zero for the others."""
    classes = torch.arange(scores.shape[2], device=scores.device)
    return (scores.argmax(dim=2, keepdim=True) == classes).to(scores.dtype)


@dataclass(frozen=True)
class _Sum:
    """Over some draws: their share of the mean of -log p, or -log of the sum of p; its gradient; the sum of what predicts."""

    value: Tensor
    tally: Tensor
    slope: Tensor | None

    def plus(self, other: _Sum, mean: Mean) -> _Sum:
        """Over the draws of both."""
        tally = self.tally + other.tally
        if mean is Mean.LOSS:
            slope = None if self.slope is None or other.slope is None else self.slope + other.slope
            return _Sum(self.value + other.value, tally, slope)
        # The gradient of log(a + b) weighs those of log a and log b with a's and b's shares; in logs nothing underflows.
        value = -torch.logaddexp(-self.value, -other.value)
        if self.slope is None or other.slope is None:
            return _Sum(value, tally, None)
        mine, theirs = (per_row((value - part.value).exp(), self.slope) for part in (self, other))
        return _Sum(value, tally, self.slope * mine + other.slope * theirs)
