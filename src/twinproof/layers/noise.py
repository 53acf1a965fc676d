"""Noise layers: the law of the noise, how it is spread over coordinates, and the layer itself."""

from __future__ import annotations

import math
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from twinproof import checks
from twinproof.errors import ConfigError, ModelError


class Law(StrEnum):
    """The law of the standard noise: normal with variance 1, or Laplace with scale 1 (variance 2)."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"


class Place(StrEnum):
    """Where the noise is added: to the network's input, or to the output of its first linear or convolution layer."""

    INPUT = "input"
    FIRST_LAYER = "first-layer"


class Spread(nn.Module, ABC):
    """Multiplies standard noise by the scales S of its coordinates; where ``random``, every row draws its own S.

    No scale that ``forward`` multiplies by is below its entry of ``least()``, and where ``random`` is False they are the same
    numbers, to the bit: subclasses take both from one function of the same tensors on the same device.
    """

    random: ClassVar[bool] = False

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = tuple(int(size) for size in shape)
        for size in self.shape:
            checks.whole(1, size=size, where="shape of the noise layer")

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
        # Not part of the state: it is there for its device.
        self.register_buffer("_ones", torch.ones(()), persistent=False)
        self._ones: Tensor

    def forward(self, noise: Tensor) -> Tensor:
        return noise

    def least(self) -> Tensor:
        return self._ones.expand(self.coordinates)


class FixedSpread(Spread):
    """Given scales, kept in the buffer ``scales`` (K,) as float32; they do not change in training."""

    def __init__(self, shape: tuple[int, ...], scales: ArrayLike) -> None:
        super().__init__(shape)
        values = np.asarray(scales, dtype=np.float64).reshape(-1)
        if values.size != self.coordinates:
            wanted = f"{self.coordinates}, one each"
            raise ConfigError("the scales do not fit the layer", where="scales", got=f"{values.size} numbers", wanted=wanted)
        limits, fix = np.finfo(np.float32), "no coordinate may get no noise: give each a share r_k above 0"
        lowest, largest = float(limits.tiny), float(limits.max)
        checks.between(lowest, largest, smallest_scale=float(values.min()), largest_scale=float(values.max()), fix=fix)
        self.register_buffer("scales", torch.from_numpy(values.astype(np.float32)))
        self.scales: Tensor

    def forward(self, noise: Tensor) -> Tensor:
        return noise * self.scales.view(self.shape)

    def least(self) -> Tensor:
        return self.scales


class LearnedSpread(Spread):
    """K r = (1 - floor) K softmax(log_shares) + floor: a distribution r in which no coordinate falls below floor / K.

    ``log_shares`` (K,) starts at zero, where all scales are 1. The scales are computed in float64 and rounded once to the
    parameter's dtype, so that two devices, whose float64 functions differ in the last bits, almost always agree.
    """

    def __init__(self, shape: tuple[int, ...], floor: float = 0.1) -> None:
        super().__init__(shape)
        checks.inside(0, 1, floor=floor)
        self.floor = float(floor)
        self.log_shares = nn.Parameter(torch.zeros(self.coordinates))

    def forward(self, noise: Tensor) -> Tensor:
        return noise * self.scales().view(self.shape)

    def scales(self) -> Tensor:
        """sqrt(K r): (K,) in the dtype of the parameter, with its gradient."""
        shares = torch.softmax(self.log_shares.double(), dim=0)
        return (shares * ((1 - self.floor) * self.coordinates) + self.floor).sqrt().to(self.log_shares.dtype)

    def least(self) -> Tensor:
        """The scales; nothing about them is drawn."""
        return self.scales().detach()

    def extra_repr(self) -> str:
        return f"coordinates={self.coordinates}, floor={self.floor}"


class RandomSpread(Spread):
    """K r = w / mean(w) with weights w_k drawn uniformly from [1 - width, 1 + width], for every row and call.

    The least scale, which all other weights at 1 + width give, is computed in float64 and rounded to a float32; ``forward``
    lifts to it what float32 arithmetic put below.
    """

    random: ClassVar[bool] = True

    def __init__(self, shape: tuple[int, ...], width: float) -> None:
        super().__init__(shape)
        checks.between(0, math.nextafter(1, 0), width=width)
        self.width = float(width)
        mean = ((1 - self.width) + (self.coordinates - 1) * (1 + self.width)) / self.coordinates
        self._lowest = float(np.float32(((1 - self.width) / mean) ** 0.5))
        # Not part of the state: it is there for its device.
        self.register_buffer("_ones", torch.ones(()), persistent=False)
        self._ones: Tensor

    def forward(self, noise: Tensor) -> Tensor:
        uniform = torch.rand(noise.shape, dtype=torch.float32, device=noise.device)
        weights = uniform * (2 * self.width) + (1 - self.width)
        means = weights.mean(dim=tuple(range(1, weights.dim())), keepdim=True)
        return noise * (weights / means).sqrt().clamp(min=self._lowest)

    def least(self) -> Tensor:
        """The same bound for every coordinate."""
        return (self._ones * self._lowest).expand(self.coordinates)

    def extra_repr(self) -> str:
        return f"coordinates={self.coordinates}, width={self.width}"


# Half the step of a float32 uniform: it moves the uniform off 0 and 1, where the inverse of Laplace's law is infinite.
_HALF_STEP = 2.0**-25


def standard_noise(law: Law, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Fresh float32 draws of ``law``, independent of each other.

    The numbers depend on the generator and on how many are drawn, not on the memory layout or dtype of what they are added
    to. Drawn for all records at once, or for one record at a time under ``vmap``, they are therefore the same: that is what
    lets the trial of the per-example paths compare networks with noise.
    """
    if law is Law.GAUSSIAN:
        return torch.randn(shape, dtype=torch.float32, device=device)
    return laplace_from_uniform(torch.rand(shape, dtype=torch.float32, device=device))


def laplace_from_uniform(uniform: Tensor) -> Tensor:
    """Standard Laplace numbers from float32 numbers in [0, 1), by inversion; the largest magnitude is 24 ln 2 = 16.6.

    u - 1/2 lies in [-1/2, 1/2 - 2**-24] after rounding; adding 2**-25 is exact at both ends and monotone between, so the
    result v has |v| <= 1/2 - 2**-25, and 1 - 2|v| >= 2**-24 is exact there.
    """
    centred = (uniform - 0.5) + _HALF_STEP
    return -torch.sign(centred) * torch.log1p(-2 * centred.abs())


_LOCK = threading.Lock()
# How many blocks silence a layer now. Not an attribute of the layer: a copy made inside such a block must not stay silent.
_SILENCED: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()


class NoiseLayer(nn.Module):
    """Adds deviation * S * xi to inputs (rows, *shape): xi standard noise of ``law``, S the scales of ``spread``.

    For the Gaussian law ``deviation`` is sigma, for Laplace's the scale b. It is a float64 buffer, so that it is saved with
    the weights and a recording on a GPU reads its present value.

    Guarantees
        Every row of every call gets its own draw from torch's global generator, in train and eval mode alike, unless the
        layer is ``silenced``. ``forward`` changes no buffer, keeps nothing and does not wait for a device. These are float
        numbers for training; certificates rest on the exact noise of ``twinproof.certification``.
    """

    def __init__(self, shape: tuple[int, ...], law: Law, deviation: float, spread: Spread) -> None:
        super().__init__()
        self.shape = tuple(int(size) for size in shape)
        self.law = Law(law)
        if spread.shape != self.shape:
            raise ConfigError(
                "the spread does not fit the noise layer", where="spread", got=f"shape {spread.shape}", wanted=f"{self.shape}"
            )
        checks.not_negative(deviation=deviation)
        self.register_buffer("deviation", torch.tensor(float(deviation), dtype=torch.float64))
        self.deviation: Tensor
        self.spread = spread

    def forward(self, inputs: Tensor) -> Tensor:
        """The inputs with noise; the very same tensor where the layer is silenced."""
        if self in _SILENCED:
            return inputs
        if inputs.shape[1:] != self.shape:
            raise ModelError(
                "the noise layer does not fit what goes into it",
                where="noise layer",
                got=f"a batch of shape {tuple(inputs.shape)}",
                wanted=f"(rows, {', '.join(map(str, self.shape))})",
            )
        noise = standard_noise(self.law, inputs.shape, inputs.device).to(inputs.dtype)
        spread: Tensor = self.spread(noise)
        return inputs + self.deviation * spread

    def set_deviation(self, value: float | Tensor) -> None:
        """Changes the deviation in place; a tensor is copied on its device without being looked at."""
        with torch.no_grad():
            if isinstance(value, Tensor):
                self.deviation.copy_(value)
            else:
                checks.not_negative(deviation=value)
                self.deviation.fill_(value)

    def extra_repr(self) -> str:
        return f"{self.law}, shape={self.shape}"


@contextmanager
def silenced(model: nn.Module) -> Iterator[None]:
    """Inside, the noise layers of ``model`` add nothing, in every thread; afterwards they do again, also after an error.

    Blocks may be nested. A pass that is recorded on a GPU inside such a block stays silent when it is replayed.
    """
    layers = [module for module in model.modules() if isinstance(module, NoiseLayer)]
    _count(layers, 1)
    try:
        yield
    finally:
        _count(layers, -1)


def _count(layers: list[NoiseLayer], change: int) -> None:
    with _LOCK:
        for layer in layers:
            users = _SILENCED.get(layer, 0) + change
            if users:
                _SILENCED[layer] = users
            else:
                del _SILENCED[layer]
