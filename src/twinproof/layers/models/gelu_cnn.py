"""A convolutional network with GroupNorm and GELU, for private training on small images.

Norms of single records and smooth units are what De et al. (2022) and others found to carry networks through the noise of
DP-SGD. The first kernels are large, because each averages the smoothing noise of the pixels it sees.
"""

from __future__ import annotations

from torch import nn

from twinproof.layers.models.residual import conv, image_shape

_GROUPS = 8  # divides every number of maps here, whatever the width
_STAGES = 3  # each halves the side


def gelu_cnn(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """7x7, 3x3 and 3x3 convolutions of stride 2, each with GroupNorm and GELU, then logits: 34,298 parameters on 1x28x28."""
    channels, height, across = image_shape(shape, smallest=8)
    layers: list[nn.Module] = []
    n_in = channels
    for stage in range(_STAGES):
        n_out = 16 * width * 2**stage
        layers += [conv(n_in, n_out, 3 if stage else 7, stride=2), nn.GroupNorm(_GROUPS, n_out), nn.GELU()]
        n_in = n_out
    rows, columns = (-(-size // 2**_STAGES) for size in (height, across))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(n_in * rows * columns, classes))
