"""PixelDP's Parseval steps: a kernel's singular values are drawn towards 1, so that its layer keeps lengths."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from twinproof.layers.noise.placement import FirstLayer

# PixelDP takes ceil(100 L) steps of this size after each update: ten for its attack bound of 0.1.
_STEP_SIZE, _STEPS = 3e-4, 10
# The step overshoots, and the next ones diverge, where a singular value exceeds 1 / sqrt(step size) = 57.
_LARGEST = 50.0


def parseval_steps(layer: FirstLayer) -> None:
    """Takes the steps on the layer's weight, in place.

    The kernel as a matrix V (outputs, what one output sees) goes to (1 + b) V - b V V^T V. Each input is seen by up to
    ceil(kernel / stride) patches per axis, so a layer whose matrix has singular values 1 may lengthen an input by the root of
    their number: V is the weight times that root. Groups of channels are matrices of their own.
    """
    overlap = _overlap(layer)
    groups = 1 if isinstance(layer, nn.Linear) else layer.groups
    with torch.no_grad():
        matrices = layer.weight.detach().reshape(groups, layer.weight.shape[0] // groups, -1) * overlap
        lengths = torch.linalg.vector_norm(matrices, dim=(1, 2), keepdim=True)
        matrices = matrices * (_LARGEST / lengths.clamp(min=_LARGEST))
        for _ in range(_STEPS):
            matrices = _step(matrices)
        layer.weight.copy_((matrices / overlap).view_as(layer.weight))


def _step(matrices: Tensor) -> Tensor:
    rows, columns = matrices.shape[1:]
    transposed = matrices.transpose(1, 2)
    cubes = (matrices @ transposed) @ matrices if rows <= columns else matrices @ (transposed @ matrices)
    return (1 + _STEP_SIZE) * matrices - _STEP_SIZE * cubes


def _overlap(layer: FirstLayer) -> float:
    if isinstance(layer, nn.Linear):
        return 1.0
    return math.sqrt(
        math.prod(math.ceil(kernel / stride) for kernel, stride in zip(layer.kernel_size, layer.stride, strict=True))
    )
