"""The MNIST network of Tramer and Boneh (ICLR 2021), used by DP-CERT for MNIST and Fashion-MNIST."""

from __future__ import annotations

from torch import nn


def _after(size: int, kernel: int, stride: int, padding: int = 0) -> int:
    return (size + 2 * padding - kernel) // stride + 1


def tramer_boneh_cnn(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """Two tanh convolutions with overlapping max-pooling and two linear layers: 26,010 parameters on 1x28x28, width 1."""
    channels, height, across = shape
    rows, columns = (_after(_after(_after(_after(size, 8, 2, 2), 2, 1), 4, 2), 2, 1) for size in (height, across))
    if min(rows, columns) < 1:
        raise ValueError(f"images of {height}x{across} are too small")
    maps, hidden = 16 * width, 32 * width
    return nn.Sequential(
        nn.Conv2d(channels, maps, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(maps, 2 * maps, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(2 * maps * rows * columns, hidden),
        nn.Tanh(),
        nn.Linear(hidden, classes),
    )
