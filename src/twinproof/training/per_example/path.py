"""What a way of computing per-example gradients takes and gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from twinproof.training.per_example.gradients import PerExampleGradient, rounded_up, zero_gradient
from twinproof.training.per_example.groups import Group, grouped

RecordLoss = Callable[[Tensor, Tensor], Tensor]
"""The loss of one record: the logits of its copies (copies, classes) and its label () -> a scalar."""


@dataclass(frozen=True, eq=False)
class RecordGradients:
    """The gradients of m records by parameter name (only parameters that require a gradient), and their losses (m,)."""

    by_name: dict[str, PerExampleGradient]
    losses: Tensor

    def squared_norms(self) -> Tensor:
        """Squared norm of each record's whole gradient, over all parameters: (m,) float64, never below the exact value."""
        parts = [group.gradient.squared_norms() for group in self._groups]
        return rounded_up(torch.stack(parts).sum(0), len(parts))

    def weighted_sums(self, weights: Tensor) -> dict[str, Tensor]:
        """The sum over records of weight times gradient, by parameter name, for weights (m,) float64: in float64.

        A record of weight 0 adds exactly nothing, whatever its gradient holds.
        """
        found: dict[str, Tensor] = {}
        for group in self._groups:
            found |= group.parts(group.gradient.weighted_sum(weights))
        return {name: found[name] for name in self.by_name}

    @cached_property
    def _groups(self) -> list[Group]:
        return grouped(self.by_name)


class PerExamplePath(ABC):
    """A way of computing the gradient of each record's loss, where a record has several copies (augmentations).

    Guarantees
        A record's gradient is a function of the model, its own copies and its own label: at a fixed number of records it does
        not change by one bit when the other records change, whatever they hold.
    """

    @abstractmethod
    def gradients(self, inputs: Tensor, labels: Tensor) -> RecordGradients:
        """Gradients of m records: ``inputs`` (m, copies, *shape), ``labels`` (m,). m may be 0."""


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, by the module's own names; a shared one once, under its first name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def no_records(model: nn.Module, inputs: Tensor) -> RecordGradients:
    """The answer for an empty batch, which a Poisson sampler does draw: empty results in the right shapes."""
    parameters = trainable_parameters(model)
    dtype = next((parameter.dtype for parameter in parameters.values()), torch.get_default_dtype())
    by_name: dict[str, PerExampleGradient] = {name: zero_gradient(value, 0) for name, value in parameters.items()}
    return RecordGradients(by_name, torch.zeros(0, dtype=dtype, device=inputs.device))
