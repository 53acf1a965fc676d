"""Group normalisation and activation in one pass on a GPU, and the same in plain torch where Triton is missing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from twinproof.triton_kernels import kernels_run


def can_be_fused(norm: nn.Module, activation: nn.Module | None) -> bool:
    """Whether the two layers are a group normalisation with scale and shift, and exact GELU or ReLU, in this order."""
    if type(norm) is not nn.GroupNorm or not norm.affine:
        return False
    return type(activation) is nn.ReLU or (type(activation) is nn.GELU and activation.approximate == "none")


class NormActivation(nn.Module):
    """Group normalisation, then GELU or ReLU, on maps in channels-last memory; the answer is in channels-last memory too.

    Guarantees
        The same function up to float rounding: variances are means of squared distances from the mean, as in torch. NaN stays
        NaN, in all of its group.
    """

    def __init__(self, norm: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        if not isinstance(norm, nn.GroupNorm):
            raise TypeError(f"a group normalisation is wanted, got {type(norm).__name__}")
        self.norm = norm
        self.gelu = type(activation) is nn.GELU

    def forward(self, x: Tensor) -> Tensor:
        """(rows, channels, height, width) to the same shape."""
        if kernels_run(x.device):
            from twinproof.certification import norm_kernel

            _, channels, height, across = x.shape
            if norm_kernel.fits(height * across, channels // self.norm.num_groups):
                inner, norm = x.permute(0, 2, 3, 1).contiguous(), self.norm
                # Triton launches on the current GPU, which need not be the one of the tensors.
                with torch.cuda.device(x.device):
                    maps = norm_kernel.normed(inner, norm.num_groups, norm.weight, norm.bias, norm.eps, gelu=self.gelu)
                return maps.permute(0, 3, 1, 2)
        normed: Tensor = self.norm(x)
        return F.gelu(normed) if self.gelu else normed.relu_()
