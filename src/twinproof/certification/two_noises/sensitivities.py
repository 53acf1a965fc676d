"""Sums of magnitudes of a layer's weights, exactly as its stride and padding have it, and what StoBatch takes for them.

The sound sensitivities themselves are those of one noise: ``identity_norm`` for the input and ``layer_norm`` for the layer
(``certification/layer_norm_bound.py``), all maps of a convolution together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from torch import nn

from twinproof.privacy.sensitivity.layer_map import layer_map
from twinproof.privacy.sensitivity.linear_map import Array


def outgoing_sums(layer: nn.Module, shape: tuple[int, ...], scale: ArrayLike | None = None) -> Array:
    """(inputs,): how far the whole layer moves in l1 when one coordinate of its input moves by 1; sum_k |theta_jk| / S_k.

    Guarantees
        Never below the sum of the column of the layer's own matrix, each output divided by its entry of ``scale``: float64
        with the error of its sums added.
    """
    matrix = layer_map(layer, shape, scale)
    return _upwards(matrix.absolute().adjoint(np.ones((matrix.outputs, 1))), matrix.error, matrix.exponent)


def incoming_sums(layer: nn.Module, shape: tuple[int, ...], scale: ArrayLike | None = None) -> Array:
    """(outputs,): how far each output can move when every coordinate of the input moves by at most 1; sum_j |theta_jk| / S_k.

    Guarantees
        Never below the sum of the row of the layer's own matrix, as in ``outgoing_sums``.
    """
    matrix = layer_map(layer, shape, scale)
    return _upwards(matrix.absolute().apply(np.ones((matrix.inputs, 1))), matrix.error, matrix.exponent)


def paper_hidden_sensitivity(layer: nn.Module, shape: tuple[int, ...]) -> float:
    """StoBatch's sensitivity of the layer to linf changes, as written: beta times the largest 1-norm of a row of theta.

    theta being (inputs, beta), a row holds the weights that leave one input. Refuted: with all weights 1, 784 inputs and 10
    outputs move by 7,840 in l1, and this says 100. To compare, never to certify with: with the rows of its transpose (the
    weights that enter one output) the formula is true, and ``layer_norm`` is never larger than that.
    """
    leaving = outgoing_sums(layer, shape)
    return float(len(incoming_sums(layer, shape)) * leaving.max())


def _upwards(sums: Array, error: float, exponent: int) -> Array:
    return np.nextafter(np.ldexp(sums[:, 0] * (1 + error), exponent), np.inf, where=sums[:, 0] > 0, out=np.zeros(len(sums)))
