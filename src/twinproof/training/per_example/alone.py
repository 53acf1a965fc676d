"""Slower paths for networks whose rows do not come out alike: records with empty rows between them, or one record at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twinproof.errors import ConfigError
from twinproof.training.per_example.gradients import Instantiated, PerExampleGradient
from twinproof.training.per_example.outputs import checked_logits, checked_loss
from twinproof.training.per_example.path import (
    PerExamplePath,
    RecordGradients,
    RecordLoss,
    no_records,
    trainable_parameters,
)
from twinproof.training.per_example.repeatable import repeatable_convolutions


class SpacedPath(PerExamplePath):
    """Lets ``inner`` compute each record in a row that is a multiple of ``every``; the rows between hold zeros.

    A matrix product on a CPU adds up in an order that depends on where in memory a row begins. A row of 7 numbers begins at
    four kinds of places, every fourth row at one kind: with three empty rows between records all of them are computed alike.
    """

    def __init__(self, inner: PerExamplePath, every: int) -> None:
        if every < 2:
            raise ConfigError("there is no row between the records", where="every", got=every, wanted="2 or more")
        self.inner = inner
        self.every = every

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        """See :class:`PerExamplePath`."""
        spaced = inputs.new_zeros(len(inputs) * self.every, *inputs.shape[1:])
        spaced[:: self.every] = inputs
        spaced_labels = labels.new_zeros(len(spaced))
        spaced_labels[:: self.every] = labels
        found = self.inner.gradients(spaced, spaced_labels)
        by_name: dict[str, PerExampleGradient] = {
            name: Instantiated(value.instantiate()[:: self.every].contiguous()) for name, value in found.by_name.items()
        }
        return RecordGradients(by_name, found.losses[:: self.every].contiguous())


class SinglePath(PerExamplePath):
    """Plain autograd, one record after the other: as slow as it sounds, and right for every module.

    Guarantees
        A forward pass sees the copies of one record and nothing else, so that no other record can act on its gradient, nor
        the row that it stands in. Numbers drawn inside are drawn for that record.
    """

    def __init__(self, model: nn.Module, loss: RecordLoss) -> None:
        self.model = model
        self.loss = loss

    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        """See :class:`PerExamplePath`."""
        if inputs.shape[0] == 0:
            return no_records(self.model, inputs)
        parameters = trainable_parameters(self.model)
        stacked = {name: value.new_empty(len(inputs), *value.shape).detach() for name, value in parameters.items()}
        losses = []
        with torch.enable_grad(), repeatable_convolutions(inputs.device):
            for row, (record, label) in enumerate(zip(inputs, labels, strict=True)):
                logits = checked_logits(self.model(record.clone()), record.shape[0])
                value = checked_loss(self.loss(logits, label))
                found = torch.autograd.grad(value, list(parameters.values()), allow_unused=True, materialize_grads=True)
                for name, gradient in zip(parameters, found, strict=True):
                    stacked[name][row] = gradient
                losses.append(value.detach())
        by_name: dict[str, PerExampleGradient] = {name: Instantiated(value) for name, value in stacked.items()}
        return RecordGradients(by_name, torch.stack(losses))
