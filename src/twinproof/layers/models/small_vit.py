"""A small vision transformer (Dosovitskiy et al. 2021) whose every parameter belongs to a layer with a fast gradient rule.

So there is no class token (the mean over patches takes its place), positions are rows of an embedding table, and attention is
four linear layers.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.layers.models.residual import image_shape

_PATCH = 4
_HEADS = 4
_HEAD_SIZE = 32
_DEPTH = 6
_EXPANSION = 4


class Attention(nn.Module):
    """Multi-head self-attention over the patches of one image."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """(rows, patches, size) to the same shape.

        The softmax is written out: the fused kernels of torch add up their gradients in a varying order on a GPU, and a
        record's gradient must keep every bit whatever stands beside it.
        """
        query, key, value = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        weights = torch.softmax(query @ key.transpose(2, 3) * query.shape[3] ** -0.5, dim=3)
        mixed: Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return mixed


class TransformerBlock(nn.Module):
    """Attention and two linear layers, each behind a LayerNorm and added to its input."""

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(size)
        self.attention = Attention(size, heads)
        self.norm2 = nn.LayerNorm(size)
        self.expand = nn.Linear(size, _EXPANSION * size)
        self.contract = nn.Linear(_EXPANSION * size, size)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, patches, size) to the same shape."""
        x = x + self.attention(self.norm1(x))
        inner: Tensor = self.contract(F.gelu(self.expand(self.norm2(x))))
        return x + inner


class Patches(nn.Module):
    """Cuts an image into patches, gives each its vector and adds the vector of its position."""

    def __init__(self, shape: tuple[int, int, int], size: int) -> None:
        super().__init__()
        channels, height, across = shape
        self.count = (height // _PATCH) * (across // _PATCH)
        self.embed = nn.Conv2d(channels, size, _PATCH, stride=_PATCH)
        self.position = nn.Embedding(self.count, size)
        nn.init.normal_(self.position.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, height, width) to (rows, patches, size)."""
        numbers = torch.arange(self.count, device=x.device).expand(x.shape[0], -1)
        vectors: Tensor = self.embed(x).flatten(2).transpose(1, 2) + self.position(numbers)
        return vectors


class MeanOverPatches(nn.Module):
    """The mean vector of an image's patches."""

    def forward(self, x: Tensor) -> Tensor:
        """(rows, patches, size) to (rows, size)."""
        return x.mean(1)


def small_vit(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """Patches of 4x4, six blocks of size 128 x width with 4 x width heads: 1,205,642 parameters on 3x32x32, 10 classes."""
    channels, height, across = image_shape(shape, smallest=2 * _PATCH)
    if height % _PATCH or across % _PATCH:
        raise ValueError(f"images of {height}x{across} cannot be cut into patches of {_PATCH}x{_PATCH}")
    size = _HEADS * _HEAD_SIZE * width
    return nn.Sequential(
        Patches((channels, height, across), size),
        *(TransformerBlock(size, _HEADS * width) for _ in range(_DEPTH)),
        nn.LayerNorm(size),
        MeanOverPatches(),
        nn.Linear(size, classes),
    )
