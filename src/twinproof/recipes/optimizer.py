"""The optimiser of a run: SGD with momentum, or Adam where a paper's own variant is trained as its authors did."""

from __future__ import annotations

import torch
from torch import nn

from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.noise_layer import Variant
from twinproof.recipes.registry import find_recipe


def optimizer_of(config: ResolvedConfig, model: nn.Module) -> torch.optim.Optimizer:
    """What moves the weights of ``model``; its state is the checkpoint's."""
    printed = find_recipe(config.recipe).printed if config.variant is Variant.PUBLISHED else None
    if printed is None:
        return torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=config.momentum)
    # On a GPU the update is a recording, which cannot count steps on the host.
    recorded = next(model.parameters()).is_cuda
    return torch.optim.Adam(model.parameters(), lr=config.learning_rate, capturable=recorded)
