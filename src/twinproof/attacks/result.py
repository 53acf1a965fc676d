"""What an attack found: a typed record, one row for each attacked input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AttackResult:
    """The attacked inputs beside what the attacked objective says of them and of their originals.

    ``labels`` are those that were attacked: the true or predicted classes to get away from, or the ``targeted`` ones to reach.
    ``losses`` are cross-entropies of those labels; ``lengths`` the float64 lengths of the perturbations in the threat's norm.
    """

    inputs: Tensor
    labels: Tensor
    starting_losses: Tensor
    losses: Tensor
    starting_predictions: Tensor
    predictions: Tensor
    lengths: Tensor
    targeted: bool = False

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> AttackResult:
        """The same rows on another device."""
        return AttackResult(**{name: getattr(self, name).to(device) for name in ROWS}, targeted=self.targeted)

    @property
    def success(self) -> Tensor:
        """Which attacked inputs have the target's class, or another class than their label."""
        return succeeds(self.predictions, self.labels, self.targeted)


ROWS = ("inputs", "labels", "starting_losses", "losses", "starting_predictions", "predictions", "lengths")
"""The fields that hold one row for each input."""


def succeeds(predictions: Tensor, labels: Tensor, targeted: bool) -> Tensor:
    """Whether these predictions are what the attacker wanted."""
    return (predictions == labels) if targeted else (predictions != labels)


def joined(results: Sequence[AttackResult]) -> AttackResult:
    """The rows of several results of one attack, in order."""
    columns = {name: torch.cat([getattr(result, name) for result in results]) for name in ROWS}
    return AttackResult(**columns, targeted=results[0].targeted)
