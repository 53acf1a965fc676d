"""The network of StoBatch on MNIST (Phan et al., ICML 2020), with norms of single records in place of batch norm."""

from __future__ import annotations

from torch import nn

from twinproof.layers.models.residual import image_shape

_GROUPS = 8  # divides the number of maps, whatever the width


def stobatch_cnn(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """5x5 convolutions of 32 and 64 maps, a layer of 256 units cut to [-1, 1], logits: 317,642 parameters on 1x28x28.

    The first convolution is the auto-encoder's layer: noise is put right behind it. Batch norm, which mixes records, has become
    GroupNorm and LayerNorm.
    """
    channels, height, across = image_shape(shape, smallest=4)
    maps, units = 32 * width, 256 * width
    rows, columns = (_fourth(size) for size in (height, across))
    return nn.Sequential(
        nn.Conv2d(channels, maps, 5, stride=2, padding=2),
        nn.GroupNorm(_GROUPS, maps),
        nn.AvgPool2d(2),
        nn.ReLU(),
        nn.Conv2d(maps, 2 * maps, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * maps * rows * columns, units),
        nn.LayerNorm(units),
        nn.Hardtanh(-1, 1),
        nn.Linear(units, classes),
    )


def _fourth(size: int) -> int:
    """What a stride of 2, a pool of 2 and another stride of 2 leave."""
    pooled = -(-size // 2) // 2
    return -(-pooled // 2)
