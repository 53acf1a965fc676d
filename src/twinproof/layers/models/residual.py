"""What residual networks share: convolutions without bias, and GroupNorm in the place of BatchNorm.

BatchNorm is out of the question in private training: it lets one record act on the gradients of the others.
"""

from __future__ import annotations

from torch import nn


def conv(n_in: int, n_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size of the maps at stride 1; no bias, since a normalisation follows."""
    return nn.Conv2d(n_in, n_out, kernel, stride=stride, padding=kernel // 2, bias=False)


def image_shape(shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """``shape`` as (channels, height, width); ValueError unless it is an image of at least ``smallest`` a side."""
    channels, height, across = shape
    if min(height, across) < smallest:
        raise ValueError(f"images of {height}x{across} are too small")
    return channels, height, across
