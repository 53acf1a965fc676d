"""The noise layer: what goes in plus fresh noise for every row and call, in training and in evaluation."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from twinproof.errors import ConfigError, ModelError
from twinproof.layers.noise.law import Law
from twinproof.layers.noise.spread import Spread
from twinproof.layers.noise.standard_noise import standard_noise

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
        self.register_buffer("deviation", torch.tensor(_checked_deviation(deviation), dtype=torch.float64))
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
                self.deviation.fill_(_checked_deviation(value))

    def extra_repr(self) -> str:
        """For ``print(network)``."""
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


def _checked_deviation(value: float) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(
            "the deviation of the noise is not usable", where="deviation", got=value, wanted="finite, not negative"
        )
    return float(value)
