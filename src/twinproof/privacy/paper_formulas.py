"""Norms of a first layer as the papers claim them, which do NOT hold; for bounds that are published and not proven.

Phan et al. 2019 (heterogeneous Gaussian mechanism, Secure-SGD), equations 6 and after; Lecuyer et al. 2019 (PixelDP). With a
redistribution r of K outputs, ``scale`` is sqrt(K r) as in ``operator_norm``; the papers divide by K r, its square.
Nothing that makes a promise may use this file; each function says where it fails, and the tests say by how much.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from torch import nn

from twinproof.errors import ModelError
from twinproof.privacy.linear_maps import Array, Convolution, checked_layer, layer_map


def paper_row_norm(layer: nn.Module, input_shape: tuple[int, ...], scale: ArrayLike | None = None) -> float:
    """Claims the inf->2 norm: sqrt(K) max_k |W_k|_1 / (K r_k), W_k the k-th row.

    True for shares r that add up to 1, though the noise's own whitening divides by sqrt(K r): with b_k = |W_k|_1 / (K r_k),
    the whitened square sum is sum_k b_k^2 K r_k <= K max b^2. Several times too large for most layers.
    """
    rows = _papers_row_sums(layer, input_shape, scale)
    return math.sqrt(rows.size) * float(rows.max())


def paper_single_feature_map(layer: nn.Module, input_shape: tuple[int, ...], scale: ArrayLike | None = None) -> float:
    """Claims the inf->2 norm of a convolution: the same, with the positions of one feature map in place of K.

    False: one change of the input moves all maps at once. Too small by up to the root of their number.
    """
    checked = _convolution(layer)
    rows = _papers_row_sums(layer, input_shape, scale)
    return math.sqrt(rows.size // checked.out_channels) * float(rows.max())


def paper_reshaped_kernel(layer: nn.Module) -> float:
    """Claims the 2->2 norm of a convolution: the largest singular value of its kernel as a (taps, channels) matrix.

    False where patches overlap, as in the code of Secure-SGD: an input is then seen by several patches. PixelDP's code first
    divides the kernel by ceil(kernel / stride), the root of the number of patches that see an input, and that is true.
    """
    weight = _convolution(layer).weight.detach().double()
    return float(np.linalg.norm(weight.flatten(1).cpu().numpy(), ord=2))


def _papers_row_sums(layer: nn.Module, input_shape: tuple[int, ...], scale: ArrayLike | None) -> Array:
    """(outputs,): |W_k|_1 / (K r_k)."""
    matrix = layer_map(layer, tuple(input_shape), scale)
    whitened = np.ldexp(matrix.absolute().apply(np.ones((matrix.inputs, 1))).reshape(-1), matrix.exponent)
    return whitened if scale is None else whitened / np.asarray(scale, dtype=np.float64).reshape(-1)


def _convolution(layer: nn.Module) -> Convolution:
    known = checked_layer(layer)
    if isinstance(known, nn.Linear):
        raise ModelError(
            "the papers' bound is for convolutions",
            where=type(layer).__name__,
            got=type(layer).__name__,
            wanted="a convolution",
            fix="use operator_norm, which bounds every layer",
        )
    return known
