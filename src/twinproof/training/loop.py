"""The one training loop. It knows no paper: a gradient source fills its only slot."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from twinproof.training.gradient_source import GradientSource
from twinproof.training.update import Update


def run_loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: GradientSource,
    *,
    first: int,
    steps: int,
    after_step: Callable[[int], None],
) -> None:
    """Takes the steps first..steps-1; ``after_step`` is told how many steps have been taken in all."""
    update = Update(model, optimizer)
    for step in range(first, steps):
        update(source.gradient(step))
        after_step(step + 1)
