"""Norms and sums of float32 gradients by Triton kernels, where there is a GPU and Triton; imported only when they are used."""

from __future__ import annotations

import torch
from torch import Tensor

from twinproof.triton_kernels import kernels_run


def kernels_serve(flat: Tensor) -> bool:
    """Whether the kernels take this matrix: float32, rows one after the other, on a GPU."""
    return flat.is_cuda and flat.dtype == torch.float32 and flat.is_contiguous() and kernels_run(flat.device)


def row_squares(flat: Tensor) -> Tensor:
    """The sum of squares of each row, in float64."""
    from twinproof.training.per_example import sum_kernels

    # Triton launches on the current GPU, which need not be the one of the tensors.
    with torch.cuda.device(flat.device):
        return sum_kernels.row_squares(flat)


def weighted_rows(flat: Tensor, weights: Tensor) -> Tensor:
    """The sum over rows of weight times row, in float64; rows of weight 0 are left out, whatever they hold."""
    from twinproof.training.per_example import sum_kernels

    with torch.cuda.device(flat.device):
        return sum_kernels.weighted_rows(flat, weights)
