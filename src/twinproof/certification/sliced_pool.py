"""Max-pooling as maxima of shifted slices: the same numbers to the bit, several times faster on a CPU.

Torch's pooling on a CPU also finds where each maximum was, which only training needs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_LARGEST_KERNEL = 4


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """A size for both directions, as torch lets people write it."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def is_plain_pool(layer: nn.Module) -> bool:
    """Whether ``layer`` is a max-pool with a small kernel and nothing out of the ordinary: no padding, dilation or ceiling."""
    if type(layer) is not nn.MaxPool2d or layer.ceil_mode or layer.return_indices:
        return False
    return (
        max(pair(layer.kernel_size)) <= _LARGEST_KERNEL
        and pair(layer.padding) == (0, 0)
        and pair(layer.dilation) == (1, 1)
        and min(pair(layer.stride)) >= 1
    )


class SlicedMaxPool(nn.Module):
    """The max-pool ``layer`` for channels-last maps, by rows first and then by columns.

    Guarantees
        Equal to ``layer`` to the bit, NaN included: a maximum rounds nothing and does not depend on the order, and
        ``torch.maximum`` hands NaN on as torch's pooling does.
    """

    def __init__(self, layer: nn.MaxPool2d) -> None:
        super().__init__()
        self.kernel, self.stride = pair(layer.kernel_size), pair(layer.stride)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, height, width) to the same with fewer positions, in channels-last memory."""
        inner = x.permute(0, 2, 3, 1)
        for axis in (0, 1):
            inner = _maxima(inner, axis + 1, self.kernel[axis], self.stride[axis])
        return inner.permute(0, 3, 1, 2)


def _maxima(x: Tensor, axis: int, kernel: int, stride: int) -> Tensor:
    span = stride * ((x.shape[axis] - kernel) // stride) + 1
    slices = [x[(slice(None),) * axis + (slice(first, first + span, stride),)] for first in range(kernel)]
    result = slices[0]
    for other in slices[1:]:
        result = torch.maximum(result, other)
    return result
