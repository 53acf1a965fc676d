"""The optimiser of a run: SGD with momentum, unless its variant has another."""

from __future__ import annotations

from torch import nn, optim

from twinproof.recipes.config import ResolvedConfig
from twinproof.recipes.registry import find_recipe


def optimizer_of(config: ResolvedConfig, model: nn.Module) -> optim.Optimizer:
    """What moves the weights of ``model``; its state is the checkpoint's."""
    variant = find_recipe(config.recipe).variant(config.variant)
    if variant is not None and variant.optimizer is not None:
        return variant.optimizer(model, config.learning_rate)
    return optim.SGD(model.parameters(), lr=config.learning_rate, momentum=config.momentum)
