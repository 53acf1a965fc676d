"""A convolutional network for images as small as 4x4."""

from __future__ import annotations

from torch import nn


def small_cnn(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """Two 3x3 convolutions (the second with stride 2), then two linear layers; tanh throughout."""
    channels, height, across = shape
    if min(height, across) < 4:
        raise ValueError(f"images of {height}x{across} are too small")
    maps, hidden = 16 * width, 32 * width
    flat = 2 * maps * ((height + 1) // 2) * ((across + 1) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, maps, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(maps, 2 * maps, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(flat, hidden),
        nn.Tanh(),
        nn.Linear(hidden, classes),
    )
