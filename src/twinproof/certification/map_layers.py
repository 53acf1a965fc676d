"""Layers that work on maps in channels-last memory, each equal to the torch layer that it stands for.

A map keeps its logical order (rows, channels, height, width), so that any layer can follow any other; only the order in memory
is the faster one.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ChannelsLast(nn.Module):
    """Puts maps in channels-last memory; for one channel only the strides change, which is free."""

    def forward(self, x: Tensor) -> Tensor:
        """The same numbers."""
        _, channels, height, width = x.shape
        if channels == 1 and x.is_contiguous():
            # Torch finds both orders fulfilled and keeps the strides; its convolution then picks the slower path.
            return x.as_strided(x.shape, (height * width, 1, width, 1))
        return x.contiguous(memory_format=torch.channels_last)


class NumpyTanh(nn.Module):
    """numpy's tanh: on one core a seventh of the time of torch's, and it uses no other core."""

    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place

    def forward(self, x: Tensor) -> Tensor:
        """Element by element, in the order in memory."""
        values = x if self.in_place else torch.empty_like(x)
        # The memory order counts for speed: numpy walks an array in its own order.
        source, target = (np.asarray(_innermost_last(part)) for part in (x, values))
        np.tanh(source, out=target)
        return values


class InPlaceReLU(nn.Module):
    """ReLU on a tensor that nobody else holds."""

    def forward(self, x: Tensor) -> Tensor:
        """Element by element."""
        return x.relu_()


class LinearOfMaps(nn.Module):
    """``nn.Flatten`` and ``nn.Linear`` after channels-last maps, with the weight's columns in their order in memory."""

    def __init__(self, linear: nn.Linear, shape: tuple[int, ...]) -> None:
        super().__init__()
        channels, height, width = shape
        order = torch.arange(channels * height * width).view(channels, height * width).T.reshape(-1)
        self.weight = nn.Parameter(linear.weight.detach()[:, order.to(linear.weight.device)].contiguous(), requires_grad=False)
        bias: Tensor | None = linear.bias  # torch's types forget that it may be missing
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, height, width) to (rows, features)."""
        return F.linear(x.permute(0, 2, 3, 1).flatten(1), self.weight, self.bias)


def _innermost_last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1) if x.ndim == 4 else x
