"""The layer before the noise as it was when a network was smoothed: a certificate is about these weights and no others."""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from torch import nn

from twinproof.errors import ConfigError, DataError, ModelError
from twinproof.layers.noise import NoiseSplit


class FrozenLayer:
    """A copy of the linear layer before the noise (at the input: one that multiplies by one), and the scales of the noise.

    ``layer`` gets inputs of ``shape``; ``scales`` are the least ones that are drawn, ``bias`` and ``dtype`` those of the layer.
    """

    def __init__(self, split: NoiseSplit, input_shape: tuple[int, ...]) -> None:
        self._split, self.input_shape = split, input_shape
        self._convolves = split.before is not None and not isinstance(split.before, nn.Linear)
        self.layer, self.shape = _layer_of(split, input_shape)
        self.scales = split.noise.spread.least_scales()
        self.dtype = torch.float32 if split.before is None else split.before.weight.dtype
        self.bias = None if split.before is None else split.before.bias

    def refuse_changes(self) -> None:
        """A first layer of before a training step with what follows it of after it would be a network that nobody has."""
        before = self._split.before
        same = np.array_equal(self._split.noise.spread.least_scales(), self.scales)
        if before is not None:
            pairs = zip(before.parameters(), self.layer.parameters(), strict=True)
            same = same and all(torch.equal(now.detach().to(then), then) for now, then in pairs)
        if not same:
            raise ModelError(
                "the network was changed after it was smoothed",
                where="certify",
                got="other weights before the noise, or other scales of it",
                wanted="those of the moment at which its layer was bounded",
                fix="smooth the network again",
            )

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuses inputs of another shape than the one that the layer was bounded for."""
        same = shape == self.input_shape if self._convolves else math.prod(shape) == math.prod(self.shape)
        if not same:
            raise DataError(
                "the inputs do not have the shape that the first layer was bounded for",
                where="certify",
                got=shape,
                wanted=str(self.input_shape if self._convolves else self.shape),
            )


def _layer_of(split: NoiseSplit, input_shape: tuple[int, ...]) -> tuple[nn.Module, tuple[int, ...]]:
    """The linear layer before the noise, a copy of its own, and the shape of what goes into it."""
    if split.before is None:
        # Every coordinate by itself: a convolution with a kernel of one, whose only weight is 1.
        identity = nn.Conv1d(1, 1, 1, bias=False, dtype=torch.float64)
        nn.init.ones_(identity.weight)
        return identity, (1, math.prod(split.noise.shape))
    layer = copy.deepcopy(split.before)
    if isinstance(layer, nn.Linear):
        return layer, (layer.in_features,)
    if not input_shape:
        raise ConfigError(
            "the norm of a convolution depends on the size of the images",
            where="input_shape",
            got="nothing",
            wanted="the shape of one input, e.g. (1, 28, 28)",
        )
    return layer, input_shape
