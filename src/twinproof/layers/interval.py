"""What interval bounds need of a network: uses of |W|, networks that keep boxes narrow, and weights to begin with.

A linear layer takes a box of centre c and radius r (each coordinate x within r of c) to the box of centre Wc + b and radius
|W| r. The last layer's answers are compared, and bounding each score by itself would give away what they have in common:
z_y - z_j is W_y - W_j applied to the box, whose radius is |W_y - W_j| r, never above (|W_y| + |W_j|) r.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from twinproof.errors import ModelError
from twinproof.layers.noise_constraint import linear_part
from twinproof.layers.noise_placement import FirstLayer


class Magnitude(nn.Module):
    """Radii before ``layer`` to radii behind it: ``layer`` with |W| for its weight and no bias.

    It has no parameter of its own, and nothing of ``layer`` is registered here.
    """

    def __init__(self, layer: FirstLayer) -> None:
        super().__init__()
        if not isinstance(layer, nn.Linear) and layer.padding_mode != "zeros":
            raise ModelError(
                "the radius behind this layer is not known",
                where="padding_mode",
                got=layer.padding_mode,
                wanted="zeros around the input, whose radius is 0",
                fix="use padding_mode='zeros'",
            )
        self._layer = (layer,)  # in a tuple: a module as an attribute would be registered

    @property
    def layer(self) -> FirstLayer:
        """The layer whose weights these are."""
        return self._layer[0]

    def forward(self, radii: Tensor) -> Tensor:
        """(rows, *inputs of the layer) -> (rows, *its outputs)."""
        return linear_part(self.layer, self.layer.weight.abs(), radii)


class DifferenceMagnitude(Magnitude):
    """Radii before a linear ``layer`` to those of the differences of its outputs: entry (y, j) is |W_y - W_j| r."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__(layer)

    def forward(self, radii: Tensor) -> Tensor:
        """(rows, inputs) -> (rows, outputs, outputs)."""
        weight = self.layer.weight
        differences = (weight.unsqueeze(1) - weight.unsqueeze(0)).abs()
        found = nn.functional.linear(radii, differences.flatten(0, 1))
        return found.view(*found.shape[:-1], len(weight), len(weight))


class Contrast(nn.Module):
    """A fixed steep ramp at 1/2 for inputs in [0, 1]: 16 (x - 1/2) + 1/2, cut to [0, 1].

    For pictures that are nearly black and white: a change of s moves only what lies within s of grey. It has no parameter and
    is the same for everybody, so that it costs no privacy. Where it does not end at 0 or 1, x - 1/2 and its product with a
    power of two are exact in floats, and one rounding is left; every step is monotone.
    """

    slope = 16.0

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return ((x - 0.5) * self.slope + 0.5).clamp(0, 1)


INTERVAL_CNN, CONTRAST_CNN, RELU_MLP = "interval-cnn", "contrast-cnn", "relu-mlp"
SMALLEST_SIDE, _SMALLEST_CHOSEN = 8, 16
_KERNELS = ((16, 5, 2), (32, 4, 1))  # maps, side and padding of the two convolutions of stride 2
_UNITS = 64


def interval_cnn(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """5x5 to 16 maps and 4x4 to 32, stride 2, 64 units, logits; ReLU throughout: 109,706 parameters on 1x28x28, width 1.

    Few layers, and wide kernels with a stride: every layer widens a box, and its width grows with the number of products.
    """
    maps, *sides = shape
    if len(sides) != 2 or min(sides) < SMALLEST_SIDE:
        raise ValueError(f"inputs of shape {shape} are no images of at least {SMALLEST_SIDE}x{SMALLEST_SIDE}")
    layers: list[nn.Module] = []
    for count, kernel, padding in _KERNELS:
        layers += [nn.Conv2d(maps, count * width, kernel, stride=2, padding=padding), nn.ReLU()]
        maps, sides = count * width, [(side + 2 * padding - kernel) // 2 + 1 for side in sides]
    units = _UNITS * width
    flat = maps * math.prod(sides)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, units), nn.ReLU(), nn.Linear(units, classes))


def contrast_cnn(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """``Contrast``, then the layers of ``interval_cnn``."""
    return nn.Sequential(Contrast(), *interval_cnn(shape, classes, width))


def relu_mlp(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """Flatten, 64 x width ReLU units, logits."""
    units = _UNITS * width
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), units), nn.ReLU(), nn.Linear(units, classes))


def fits_interval_prior(shape: tuple[int, ...]) -> bool:
    """Whether ``interval_cnn`` has the layers, but for the last one, that it has for one channel of 28x28."""
    return len(shape) == 3 and shape[0] == 1 and all(27 <= side <= 30 for side in shape[1:])


def interval_network(shape: tuple[int, ...]) -> str:
    """The network for inputs of this shape: the convolutional one leaves too little of small images to learn in privacy."""
    return INTERVAL_CNN if len(shape) == 3 and min(shape[1:]) >= _SMALLEST_CHOSEN else RELU_MLP


def begin_for_bounds(network: nn.Module) -> None:
    """Draws the weights of all linear and convolutional layers from N(0, 2 pi / fan_in^2) and sets their biases to 0.

    By Shi et al. (NeurIPS 2021): for independent normal weights of this deviation the mean of |W| over what one output sees
    is 2 / fan_in, so that a layer doubles a box's radius and the ReLU behind it halves it. With the usual deviation, of order
    1 / sqrt(fan_in), radii grow by the root of each fan_in, and the first gradients speak of nothing else.
    """
    with torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d):
                fan_in = layer.weight[0].numel()
                layer.weight.normal_(0, math.sqrt(2 * math.pi) / fan_in)
                if layer.bias is not None:
                    layer.bias.zero_()
