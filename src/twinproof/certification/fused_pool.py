"""Activation and 2x2 max-pool in one pass on a GPU, and the same in plain torch where Triton is missing."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.certification.sliced_pool import is_plain_pool, pair
from twinproof.triton_kernels import kernels_run


def can_be_fused(activation: nn.Module, pool: nn.Module) -> bool:
    """Whether the two layers are tanh or ReLU and a 2x2 max-pool with stride 1 or 2, in this order."""
    return (
        type(activation) in (nn.Tanh, nn.ReLU)
        and type(pool) is nn.MaxPool2d
        and is_plain_pool(pool)
        and pair(pool.kernel_size) == (2, 2)
        and pair(pool.stride) in ((1, 1), (2, 2))
    )


class ActivationPool(nn.Module):
    """tanh or ReLU, then a 2x2 max-pool, on maps in channels-last memory; the answer is in channels-last memory too.

    ``bias`` is added to each channel before, where the layer before left that to this one.

    Guarantees
        Neither activation decreases, nor does adding a bias in floats, so the maximum is taken first: the same function up
        to the rounding of one activation.
        NaN stays NaN.
    """

    def __init__(self, activation: nn.Module, pool: nn.Module, bias: Tensor | None = None) -> None:
        super().__init__()
        if not isinstance(pool, nn.MaxPool2d):
            raise TypeError(f"a max-pool is wanted, got {type(pool).__name__}")
        self.tanh, self.stride = type(activation) is nn.Tanh, pair(pool.stride)[0]
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, height, width) to the same with fewer positions."""
        if (kernels := _kernels(x.device)) is not None:
            inner = x.permute(0, 2, 3, 1).contiguous()
            # Triton launches on the current GPU, which need not be the one of the tensors.
            with torch.cuda.device(x.device):
                maps: Tensor = kernels.pooled(inner, stride=self.stride, tanh=self.tanh, bias=self.bias)
            return maps.permute(0, 3, 1, 2)
        smaller = F.max_pool2d(x, 2, self.stride)
        if self.bias is not None:
            smaller = smaller + self.bias[:, None, None]
        return smaller.tanh_() if self.tanh else smaller.relu_()

    def of_sums(self, inputs: Tensor, draws: Tensor) -> Tensor:
        """The answer for ``float32(inputs[i] + draws[j])`` of all i and j, j fastest; both float64 maps, channels last."""
        if (kernels := _kernels(inputs.device)) is not None:
            one, other = (part.permute(0, 2, 3, 1).contiguous() for part in (inputs, draws))
            with torch.cuda.device(inputs.device):
                maps: Tensor = kernels.pooled_sums(one, other, stride=self.stride, tanh=self.tanh)
            return maps.permute(0, 3, 1, 2)
        result: Tensor = self(sums(inputs, draws))
        return result


def sums(inputs: Tensor, draws: Tensor) -> Tensor:
    """``float32(inputs[i] + draws[j])`` for all i and j, j fastest, in the memory order of ``draws``."""
    if draws.ndim == 4:
        one, other = (part.permute(0, 2, 3, 1) for part in (inputs, draws))
        return (one[:, None] + other).to(torch.float32).flatten(0, 1).permute(0, 3, 1, 2)
    return (inputs[:, None] + draws).to(torch.float32).flatten(0, 1)


def _kernels(device: torch.device) -> ModuleType | None:
    """The kernels; None where none run."""
    if not kernels_run(device):
        return None
    from twinproof.certification import pool_kernel

    return pool_kernel
