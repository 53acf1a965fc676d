"""The one training loop. It knows no paper: a gradient source fills its only slot."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from twinproof.training.averaging import WeightAverage
from twinproof.training.gradient_source import GradientSource
from twinproof.training.schedule import Rate
from twinproof.training.update import Update


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
    """Takes the steps first..steps-1; ``after_step`` is told how many steps have been taken in all.

    ``rate`` gives each step's learning rate instead of the optimiser's; ``average`` takes in the weights after every step,
    before ``after_step`` is told.
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
