"""The 2->2 norm of a convolution too large for a Gram matrix, from its symbol on a torus.

On a torus that is larger than the input by the kernel's reach, a convolution without stride is a block-diagonal matrix in
Fourier space. The layer is that matrix with rows (stride, border) and columns (zero padding) struck out, which cannot raise
its norm. A stride folds the frequencies onto each other; treating them together keeps what the stride gains.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import nn

from twinproof.privacy.sensitivity.float_error import relative_error
from twinproof.privacy.sensitivity.layer_map import Convolution
from twinproof.privacy.sensitivity.linear_map import LinearMap

# Complex numbers in the spectra of one group of kernels: 256 MiB.
_MOST_NUMBERS = 2**24


def symbol_bound(layer: nn.Module, shape: tuple[int, ...], matrix: LinearMap) -> float:
    """An upper bound on the 2->2 norm of the map of a convolution; infinite for other layers and beyond a size.

    Guarantees
        Never below the norm. Where outputs of one channel are divided by different numbers the smallest of them counts.
        The Fourier transform's error, over all frequencies together, is a few roundings times log2(size) of the spectrum's
        length (Higham, theorem 24.2): that share of the whole length is added to the largest norm.
    """
    if not isinstance(layer, Convolution):
        return math.inf
    torus = tuple(_torus(layer, axis, size) for axis, size in enumerate(shape[1:]))
    groups, channels, taps = matrix.weights.shape
    if channels * (taps // math.prod(layer.kernel_size)) * math.prod(torus) > _MOST_NUMBERS:
        return math.inf
    largest = 0.0
    for weights, scale in zip(matrix.weights, matrix.row_scale, strict=True):
        kernels = (weights * scale.max(axis=1, keepdims=True)).reshape(channels, -1, *layer.kernel_size)
        folded = _folded_spectrum(kernels, layer, torus)
        top = float(np.linalg.norm(folded, ord=2, axis=(1, 2)).max())
        length = float(np.linalg.norm(kernels)) * math.sqrt(math.prod(torus))
        largest = max(largest, top + length * relative_error(taps + channels * math.prod(layer.stride)))
    return largest * float(matrix.column_scale.max()) * (1 + relative_error(groups))


def _torus(layer: Convolution, axis: int, size: int) -> int:
    """The smallest multiple of the stride on which patches that touch the input neither wrap onto it nor coincide."""
    stride = layer.stride[axis]
    return -(-(size + layer.dilation[axis] * (layer.kernel_size[axis] - 1)) // stride) * stride


def _folded_spectrum(kernels: NDArray[np.float64], layer: Convolution, torus: tuple[int, ...]) -> NDArray[np.complex128]:
    """(frequencies of the output, channels out, channels in * frequencies that fall together)."""
    spread = np.zeros(kernels.shape[:2] + torus)
    taps = tuple(slice(0, gap * (size - 1) + 1, gap) for size, gap in zip(layer.kernel_size, layer.dilation, strict=True))
    spread[(slice(None), slice(None), *taps)] = kernels
    axes = tuple(range(2, spread.ndim))
    spectrum = np.fft.fftn(spread, axes=axes)
    shape = list(kernels.shape[:2])
    for size, stride in zip(torus, layer.stride, strict=True):
        shape += [stride, size // stride]  # frequencies f and f + size/stride fall together
    parts = spectrum.reshape(shape)
    together, kept = list(range(2, parts.ndim, 2)), list(range(3, parts.ndim, 2))
    folded = parts.transpose(*kept, 0, 1, *together).reshape(
        math.prod(parts.shape[axis] for axis in kept), kernels.shape[0], -1
    )
    return np.asarray(folded / math.sqrt(math.prod(layer.stride)))
