"""How noise is spread over the coordinates of a layer: scales sqrt(K r_k), with r a distribution over K coordinates."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from twinproof.errors import ConfigError


class Spread(nn.Module, ABC):
    """Multiplies standard noise by the scales S of its coordinates.

    ``random`` says whether S is drawn anew for every row.

    Guarantees
        No scale that ``forward`` multiplies by is below its entry of ``least()``, and where ``random`` is False they are
        the same numbers, to the bit: subclasses take both from one function of the same tensors on the same device.
    """

    random: ClassVar[bool] = False

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = tuple(int(size) for size in shape)
        if any(size < 1 for size in self.shape):
            raise ConfigError("a noise layer needs a shape", where="shape", got=self.shape, wanted="sizes of 1 or more")

    @property
    def coordinates(self) -> int:
        """K, the number of coordinates that get noise."""
        return math.prod(self.shape)

    @abstractmethod
    def forward(self, noise: Tensor) -> Tensor:
        """S times ``noise`` (rows, *shape)."""

    @abstractmethod
    def least(self) -> Tensor:
        """The smallest scale that a draw can have, by coordinate: (K,), without a gradient, on the layer's device."""

    def least_scales(self) -> NDArray[np.float64]:
        """``least()`` on the host, in float64, which holds every float32 exactly."""
        return np.asarray(self.least().cpu().double().numpy(), dtype=np.float64)


class UniformSpread(Spread):
    """The same noise everywhere: all scales are 1."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__(shape)
        # Not part of the state: it only tells on which device the layer lies.
        self.register_buffer("_ones", torch.ones(()), persistent=False)
        self._ones: Tensor

    def forward(self, noise: Tensor) -> Tensor:
        """The noise as it is."""
        return noise

    def least(self) -> Tensor:
        """Ones."""
        return self._ones.expand(self.coordinates)


class FixedSpread(Spread):
    """Given scales, kept in the buffer ``scales`` (K,) as float32; they do not change in training."""

    def __init__(self, shape: tuple[int, ...], scales: ArrayLike) -> None:
        super().__init__(shape)
        values = np.asarray(scales, dtype=np.float64).reshape(-1)
        _check_scales(values, self.coordinates)
        self.register_buffer("scales", torch.from_numpy(values.astype(np.float32)))
        self.scales: Tensor

    def forward(self, noise: Tensor) -> Tensor:
        """Each coordinate times its scale."""
        return noise * self.scales.view(self.shape)

    def least(self) -> Tensor:
        """The scales."""
        return self.scales


def _check_scales(values: NDArray[np.float64], coordinates: int) -> None:
    if values.size != coordinates:
        raise ConfigError(
            "the scales do not fit the layer", where="scales", got=f"{values.size} numbers", wanted=f"{coordinates}, one each"
        )
    limits = np.finfo(np.float32)
    if not (np.isfinite(values).all() and values.min() >= limits.tiny and values.max() <= limits.max):
        raise ConfigError(
            "a coordinate would get no noise, or noise without bound",
            where="scales",
            got=f"smallest {values.min()}, largest {values.max()}",
            wanted="positive float32 numbers",
            fix="give each coordinate a share r_k above 0",
        )
