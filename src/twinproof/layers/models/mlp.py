"""A multi-layer perceptron with tanh units, which suit clipped gradients (Papernot et al. 2021)."""

from __future__ import annotations

import math

from torch import nn


def mlp(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """Flatten, 64 x width tanh units, logits."""
    hidden = 64 * width
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), hidden), nn.Tanh(), nn.Linear(hidden, classes))
