"""Where the noise enters a network, and what that means: what it is added to, what comes after it, how far that moves."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor, nn

from twinproof.certify.grid_noise import GridNoise
from twinproof.certify.layer_norm_bound import NormBound, identity_norm, layer_norm, papers_norm
from twinproof.certify.remaining_noise import RemainingNoise
from twinproof.certify.unwhitened import Unwhitened
from twinproof.certify.whitened_layer import WhitenedLayer
from twinproof.errors import ConfigError, DataError, ModelError
from twinproof.layers.noise import NoiseSplit, Place


class NoiseSite(ABC):
    """``network`` maps rows of points plus noise to outputs; ``levels`` are those of the inputs.

    Guarantees
        ``points`` is a fixed function of a stored input with values on the grid of ``noise``. For two inputs at a distance r in
        a norm, their points (in units of ``noise.sigma``) are at most ``norm_bound(norm).value * r + slack`` apart, in l2 for
        Gaussian and in l1 for Laplace noise.
    """

    place: Place
    levels: int
    noise: GridNoise
    network: nn.Module
    own_noise: bool
    slack: float

    @abstractmethod
    def points(self, stored: Tensor) -> Tensor:
        """What the noise is added to, for inputs in stored levels (float32)."""

    @abstractmethod
    def dimension(self, shape: tuple[int, ...]) -> int:
        """How many coordinates get noise, for inputs of ``shape``."""

    @abstractmethod
    def norm_bound(self, shape: tuple[int, ...], norm: str, *, published: bool = False) -> NormBound:
        """How far the points of inputs of ``shape`` move for one unit of ``norm``; ``published`` asks for the papers' claim."""


class InputSite(NoiseSite):
    """Equal noise on the input itself: points are stored levels, and nothing is rounded."""

    place = Place.INPUT
    slack = 0.0

    def __init__(self, network: nn.Module, noise: GridNoise, *, own_noise: bool) -> None:
        self.network, self.noise, self.own_noise, self.levels = network, noise, own_noise, noise.levels

    def points(self, stored: Tensor) -> Tensor:
        """The stored levels."""
        return stored

    def dimension(self, shape: tuple[int, ...]) -> int:
        """The coordinates of the input."""
        return math.prod(shape)

    def norm_bound(self, shape: tuple[int, ...], norm: str, *, published: bool = False) -> NormBound:
        """That of the identity, which the papers do not claim to be anything else."""
        return identity_norm(self.noise.law, norm, self.dimension(shape))


class LayerSite(NoiseSite):
    """Noise behind the first layer, or unequal noise on the input: a layer that multiplies by one.

    The layer's weights are taken as they are now, and ``points`` are refused once the network has others: the modules behind
    the noise are the network's own. What is drawn beyond the least scales of a random spread is part of the network.
    """

    own_noise = True

    def __init__(self, split: NoiseSplit, input_shape: tuple[int, ...], sigma: float, levels: int) -> None:
        noise = split.noise
        self._split = split
        self.place, self.levels, self.input_shape = split.place, levels, input_shape
        self._convolves = split.before is not None and not isinstance(split.before, nn.Linear)
        self._layer, self._shape = _layer_of(split, input_shape)
        self._scales = noise.spread.least_scales()
        self._whitened = WhitenedLayer(self._layer, self._shape, self._scales, noise.law, sigma, levels)
        self.noise, self.slack, self._layer_shape = self._whitened.noise, self._whitened.slack, noise.shape
        self._norms: dict[tuple[str, bool], NormBound] = {}
        dtype = torch.float32 if split.before is None else split.before.weight.dtype
        bias = None if split.before is None else split.before.bias
        parts: list[nn.Module] = [
            Unwhitened(noise.shape, self._scales, bias, dtype=dtype, device=noise.deviation.device),
            *([RemainingNoise(noise.law, sigma, noise.spread)] if noise.spread.random else []),
            *split.after,
        ]
        self.network = nn.Sequential(*parts)

    def points(self, stored: Tensor) -> Tensor:
        """The whitened layer on the grid, in the shape of the layer."""
        self._check_shape(tuple(stored.shape[1:]))
        self._refuse_changes()
        return self._whitened.points(stored).view(len(stored), *self._layer_shape)

    def dimension(self, shape: tuple[int, ...]) -> int:
        """The coordinates of the layer."""
        return self._whitened.dimension

    def norm_bound(self, shape: tuple[int, ...], norm: str, *, published: bool = False) -> NormBound:
        """The operator norm of the whitened layer; found once, since it can take seconds."""
        self._check_shape(shape)
        if (norm, published) not in self._norms:
            bound = papers_norm if published else layer_norm
            self._norms[norm, published] = bound(self._layer, self._shape, self.noise.law, norm, self._scales)
        return self._norms[norm, published]

    def _refuse_changes(self) -> None:
        """A first layer of before a training step with what follows it of after it would be a network that nobody has."""
        before = self._split.before
        same = np.array_equal(self._split.noise.spread.least_scales(), self._scales)
        if before is not None:
            pairs = zip(before.parameters(), self._layer.parameters(), strict=True)
            same = same and all(torch.equal(now.detach().to(then), then) for now, then in pairs)
        if not same:
            raise ModelError(
                "the network was changed after it was smoothed",
                where="certify",
                got="other weights before the noise, or other scales of it",
                wanted="those of the moment at which its layer was bounded",
                fix="smooth the network again",
            )

    def _check_shape(self, shape: tuple[int, ...]) -> None:
        same = shape == self.input_shape if self._convolves else math.prod(shape) == math.prod(self._shape)
        if not same:
            raise DataError(
                "the inputs do not have the shape that the first layer was bounded for",
                where="certify",
                got=shape,
                wanted=str(self.input_shape if self._convolves else self._shape),
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
