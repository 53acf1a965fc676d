"""A small network on fixed scattering features, after Tramer and Boneh (ICLR 2021)."""

from __future__ import annotations

from torch import nn

from twinproof.layers.models.residual import image_shape
from twinproof.layers.models.scattering import MAPS, STRIDE, Scattering


def scatter_cnn(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """Scattering, two tanh convolutions and two linear layers: 33,066 parameters on 1x28x28 with 10 classes, width 1."""
    channels, height, across = image_shape(shape, smallest=2 * STRIDE)
    maps, hidden = 16 * width, 32 * width
    rows, columns = (-(-size // (2 * STRIDE)) for size in (height, across))
    return nn.Sequential(
        Scattering(height, across),
        nn.Conv2d(channels * MAPS, maps, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(maps, 2 * maps, 3, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(2 * maps * rows * columns, hidden),
        nn.Tanh(),
        nn.Linear(hidden, classes),
    )
