"""WRN-16-4 (Zagoruyko and Komodakis 2016) with GroupNorm, the CIFAR-10 network of De et al. (2022) for private training."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.layers.models.residual import conv, image_shape

_STEM = 16
_GROUPS = 16  # divides every number of channels here, whatever the width
_BLOCKS_PER_STAGE = 2  # 16 layers = 3 stages x 2 blocks x 2 convolutions, the stem, three shortcuts and the last layer


class PreActivationBlock(nn.Module):
    """Norm, ReLU, convolution, twice, added to the input; where the shape changes, to a 1x1 convolution of it."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(_GROUPS, n_in)
        self.conv1 = conv(n_in, n_out, 3, stride)
        self.norm2 = nn.GroupNorm(_GROUPS, n_out)
        self.conv2 = conv(n_out, n_out, 3)
        self.shortcut = conv(n_in, n_out, 1, stride) if stride != 1 or n_in != n_out else None

    def forward(self, x: Tensor) -> Tensor:
        """The block's maps; ReLU makes new tensors, since per-example gradients read a layer's input after the forward."""
        active = F.relu(self.norm1(x))
        carried = x if self.shortcut is None else self.shortcut(active)
        inner: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return inner + carried


def wide_resnet_16_4(shape: tuple[int, ...], classes: int, width: int = 1) -> nn.Sequential:
    """WRN-16-(4 x width), without weight standardisation: 2,748,890 parameters on 3x32x32 with 10 classes, width 1."""
    channels, _, _ = image_shape(shape, smallest=8)
    blocks: list[nn.Module] = []
    n_in = _STEM
    for stage, maps in enumerate((16, 32, 64)):
        n_out = 4 * width * maps
        for block in range(_BLOCKS_PER_STAGE):
            blocks.append(PreActivationBlock(n_in, n_out, stride=2 if stage > 0 and block == 0 else 1))
            n_in = n_out
    return nn.Sequential(
        conv(channels, _STEM, 3),
        *blocks,
        nn.GroupNorm(_GROUPS, n_in),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(n_in, classes),
    )
