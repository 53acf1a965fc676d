"""Conventional accuracy: how often the network itself, without certification, names the true class."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from twinproof.errors import ConfigError, DataError
from twinproof.evaluation.intervals import Interval, binomial_interval
from twinproof.layers.modes import evaluation_mode
from twinproof.layers.noise import NoiseLayer
from twinproof.torch_seeding import own_generators

# Draws of a noise layer behind one answer: their mean is settled to a per cent or two, at the cost of as many passes.
_DRAWS = 16


@dataclass(frozen=True)
class Accuracy:
    """``correct`` of ``total`` test inputs, the share with its Clopper-Pearson interval, and the mean cross-entropy loss."""

    interval: Interval
    correct: int
    total: int
    loss: float

    def as_dict(self) -> dict[str, float | int]:
        """The entry ``accuracy`` of run.json."""
        return {**self.interval.as_dict(), "correct": self.correct, "total": self.total}


def clean_accuracy(
    model: torch.nn.Module, inputs: torch.Tensor, labels: torch.Tensor, *, batch_size: int = 4096, confidence: float = 0.95
) -> Accuracy:
    """Accuracy and loss of ``model`` on ``inputs`` (floats in [0, 1]); batches travel to the device of the model.

    A network with a noise layer answers by its mean probability over a few draws of that noise, as it was trained to; they come
    from a fixed seed, so that the result is the same each time. A certification asks it more often.

    Guarantees
        The model runs in eval mode without gradients and is left as it was found. The result is that of one batch of all
        inputs: every input counts once, the loss is summed in double precision, an answer with a NaN counts as wrong.
    """
    _check(inputs, labels, batch_size)
    parameter = next(model.parameters(), None)
    device = inputs.device if parameter is None else parameter.device
    correct, loss = 0, 0.0
    draws = _DRAWS if any(isinstance(layer, NoiseLayer) for layer in model.modules()) else 1
    with evaluation_mode(model), _fixed_seed(device), torch.inference_mode():
        for start in range(0, len(labels), batch_size):
            truth = labels[start : start + batch_size].to(device)
            scores = _scores(model, inputs[start : start + batch_size].to(device), draws)
            right = (scores.argmax(dim=1) == truth) & ~scores.isnan().any(dim=1)
            correct += int(right.sum())
            loss += float(cross_entropy(scores.double(), truth, reduction="sum"))
    total = len(labels)
    return Accuracy(binomial_interval(correct, total, confidence), correct, total, loss / total)


def _scores(model: torch.nn.Module, batch: torch.Tensor, draws: int) -> torch.Tensor:
    """The network's outputs, or the logarithm of its mean probability over several draws."""
    if draws == 1:
        answer: torch.Tensor = model(batch)
        return answer
    logarithms = torch.stack([model(batch).double().log_softmax(dim=1) for _ in range(draws)])
    return logarithms.logsumexp(dim=0) - math.log(draws)


@contextmanager
def _fixed_seed(device: torch.device) -> Iterator[None]:
    """Inside, torch draws from the same numbers each time; outside, nothing has been drawn."""
    with own_generators(device):
        torch.manual_seed(0)
        yield


def _check(inputs: torch.Tensor, labels: torch.Tensor, batch_size: int) -> None:
    if batch_size < 1:
        raise ConfigError("the batch size is not usable", where="batch_size", got=batch_size, wanted="at least 1")
    if len(inputs) != len(labels):
        raise DataError(
            "the number of inputs and labels differ", got=f"{len(inputs)} inputs, {len(labels)} labels", wanted="one label each"
        )
    if len(labels) == 0:
        raise DataError("there is nothing to evaluate", got="no inputs", wanted="at least one")
