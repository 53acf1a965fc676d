"""Where the noise enters a network, and what that means: what it is added to, what comes after it, how far that moves."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from torch import Tensor, nn

from twinproof.certification.bounds.bound import Charge
from twinproof.certification.frozen_layer import FrozenLayer
from twinproof.certification.grid_noise import GridNoise
from twinproof.certification.layer_norm_bound import NormBound, identity_norm, layer_norm, papers_norm
from twinproof.certification.remaining_noise import RemainingNoise
from twinproof.certification.unwhitened import Unwhitened
from twinproof.certification.whitened_layer import WhitenedLayer
from twinproof.layers.noise import NoiseSplit, Place


class NoiseSite(ABC):
    """``network`` maps rows of points plus noise to outputs; ``levels`` are those of the inputs.

    Guarantees
        ``points`` is a fixed function of a stored input with values on the grid of ``noise``. For two inputs at a distance r in
        a norm, their points (in units of ``noise.sigma``) are at most ``norm_bound(norm).value * r + slack`` apart, in l2 for
        Gaussian and in l1 for Laplace noise.
    """

    place: str
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
    def norm_bound(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> NormBound:
        """How far the points of inputs of ``shape`` move for one unit of ``norm``; ``claimed``: what the papers say."""

    def slackless_norm(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> float | None:
        """A norm, not below that of ``norm_bound``, which holds without ``slack``; None where there is none to prefer."""
        return None


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

    def norm_bound(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> NormBound:
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
        self.place, self.levels = split.place, levels
        self._frozen = frozen = FrozenLayer(split, input_shape)
        self._whitened = WhitenedLayer(frozen.layer, frozen.shape, frozen.scales, noise.law, sigma, levels)
        self.noise, self.slack, self._layer_shape = self._whitened.noise, self._whitened.slack, noise.shape
        self._norms: dict[tuple[str, bool], NormBound] = {}
        parts: list[nn.Module] = [
            Unwhitened(noise.shape, frozen.scales, frozen.bias, dtype=frozen.dtype, device=noise.deviation.device),
            *([RemainingNoise(noise.law, sigma, noise.spread)] if noise.spread.random else []),
            *split.after,
        ]
        self.network = nn.Sequential(*parts)

    def points(self, stored: Tensor) -> Tensor:
        """The whitened layer on the grid, in the shape of the layer."""
        self._frozen.check_shape(tuple(stored.shape[1:]))
        self._frozen.refuse_changes()
        return self._whitened.points(stored).view(len(stored), *self._layer_shape)

    def dimension(self, shape: tuple[int, ...]) -> int:
        """The coordinates of the layer."""
        return self._whitened.dimension

    def norm_bound(self, shape: tuple[int, ...], norm: str, charge: Charge = Charge.PROVEN) -> NormBound:
        """The operator norm of the whitened layer, where one noise alone is added; found once, since it can take seconds."""
        self._frozen.check_shape(shape)
        claimed = charge is Charge.CLAIMED
        if (norm, claimed) not in self._norms:
            bound = papers_norm if claimed else layer_norm
            frozen = self._frozen
            self._norms[norm, claimed] = bound(frozen.layer, frozen.shape, self.noise.law, norm, frozen.scales)
        return self._norms[norm, claimed]
