"""Attacking a network without leaving a trace in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from twinproof.layers.modes import evaluation_mode


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Eval mode and no gradients for parameters inside; afterwards every module and parameter is as it was.

    Guarantees
        Inside, no backward pass computes or stores the gradient of a parameter, so that an attack within a training step
        neither pays for one nor changes one.
    """
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with evaluation_mode(model):
        try:
            for parameter in learning:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in learning:
                parameter.requires_grad_(True)
