"""The weight update: gradients go in, the optimiser moves the parameters; on a GPU as one recording."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from twinproof.training.captured import Captured


class Update:
    """Hands each step's gradients to the optimiser, in tensors that stay where they are.

    A recording reads the optimiser's settings when it is made: they must not change during a run. ``scheduled`` says that
    the learning rate will; then nothing is recorded, and the optimiser's few kernels are started one by one.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, scheduled: bool = False) -> None:
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        for parameter in self._parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        device = next(iter(self._parameters.values())).device

        def step() -> None:
            optimizer.step()

        self._step = step if scheduled else Captured(step, device)

    def __call__(self, gradients: Mapping[str, Tensor]) -> None:
        """One update."""
        targets = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        torch._foreach_copy_(targets, [gradients[name] for name in self._parameters])
        self._step()
