"""ResNet-18 (He et al. 2016) in its form for small images: a 3x3 stem, no pooling before the blocks; GroupNorm."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.layers.models.residual import conv, image_shape

_GROUPS = 32  # divides every number of channels here, whatever the width


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with norms, added to the input (or to a normalised 1x1 convolution of it), then ReLU."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv(n_in, n_out, 3, stride)
        self.norm1 = nn.GroupNorm(_GROUPS, n_out)
        self.conv2 = conv(n_out, n_out, 3)
        self.norm2 = nn.GroupNorm(_GROUPS, n_out)
        changes = stride != 1 or n_in != n_out
        self.shortcut = nn.Sequential(conv(n_in, n_out, 1, stride), nn.GroupNorm(_GROUPS, n_out)) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        """The block's maps; ReLU makes new tensors, since per-example gradients read a layer's input after the forward."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + (x if self.shortcut is None else self.shortcut(x)))


def resnet_18(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """Four stages of two blocks, 64 x width maps in the first: 11,173,962 parameters on 3x32x32 with 10 classes, width 1."""
    channels, _, _ = image_shape(shape, smallest=8)
    maps = 64 * width
    blocks: list[nn.Module] = []
    n_in = maps
    for stage in range(4):
        n_out = maps * 2**stage
        blocks += [BasicBlock(n_in, n_out, stride=2 if stage else 1), BasicBlock(n_out, n_out, stride=1)]
        n_in = n_out
    return nn.Sequential(
        conv(channels, maps, 3),
        nn.GroupNorm(_GROUPS, maps),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(n_in, classes),
    )
