"""Where targeted attacks aim: one class for each input, never its true one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from twinproof.errors import ConfigError
from twinproof.layers.modes import evaluation_mode

_ROWS = 1024


def aimed_classes(aim: str, model: nn.Module, inputs: Tensor, labels: Tensor, classes: int) -> Tensor:
    """The class that each input is to be taken for; ``aim`` is one that ``AttackPlan`` accepts.

    Guarantees
        No input aims at its true class, so that reaching the aim is always an error of the classifier.
    """
    following = (labels + 1) % classes
    if aim == "next":
        return following
    if aim == "least-likely":
        with evaluation_mode(model), torch.no_grad():
            scores = torch.cat([model(inputs[first : first + _ROWS]) for first in range(0, len(inputs), _ROWS)])
        return scores.scatter(1, labels.unsqueeze(1), torch.inf).argmin(dim=1)
    chosen = int(aim.partition(":")[2])
    if chosen >= classes:
        raise ConfigError(
            "the class to aim at does not exist", where="target class", got=chosen, wanted=f"0..{classes - 1}, as in the data"
        )
    return torch.where(labels == chosen, following, chosen)
