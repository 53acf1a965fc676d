"""Upper bounds that follow from sums of magnitudes and from the 2->2 norm, for the norms that are hard to compute."""

from __future__ import annotations

import math

import numpy as np

from twinproof.privacy.sensitivity.bound import Norm
from twinproof.privacy.sensitivity.linear_map import Array, LinearMap
from twinproof.privacy.sensitivity.spectral import fits_dense

Named = tuple[float, str]


def largest_column(matrix: LinearMap, target: Norm) -> Named:
    """The norm from l1, exactly: the l1 ball's corners are the unit vectors, so some column reaches it."""
    if target is Norm.L1:
        sums = matrix.absolute().adjoint(np.ones((matrix.outputs, 1)))
        return float(sums.max()) * (1 + matrix.error), "largest column"
    squares = matrix.squared().adjoint(np.ones((matrix.outputs, 1)))
    return math.sqrt(float(squares.max())) * (1 + matrix.error), "largest column"


def magnitude_bounds(matrix: LinearMap, source: Norm, target: Norm) -> list[Named]:
    """Bounds from the entries' magnitudes alone: exact where a sign pattern makes all entries work together.

    Guarantees
        Each is at least the norm. With a_k the rows: |a_k x| <= |a_k|_1 |x|_inf and <= |a_k|_2 |x|_2, added up over k in the
        target's norm. x'Gx <= sum |G_ij| for |x_i| <= 1, and the same for the rows' Gram matrix, as the 2->1 norm of a
        matrix is the inf->2 norm of its transpose.
    """
    if source is Norm.LINF:
        rows = matrix.absolute().apply(np.ones((matrix.inputs, 1)))
    else:
        rows = np.sqrt(matrix.squared().apply(np.ones((matrix.inputs, 1))))
    length = float(rows.sum() if target is Norm.L1 else np.linalg.norm(rows))
    found = [(length * (1 + 2 * matrix.error), "row norms")]
    if source is Norm.LINF and target is Norm.L2 and fits_dense(matrix.inputs):
        found.append((_from_gram(matrix, matrix.column_gram(), rows), "magnitudes of the Gram matrix"))
    if source is Norm.L2 and target is Norm.L1 and fits_dense(matrix.outputs):
        columns = matrix.absolute().adjoint(np.ones((matrix.outputs, 1)))
        found.append((_from_gram(matrix, matrix.row_gram(), columns), "magnitudes of the Gram matrix"))
    return found


def dimension_bound(matrix: LinearMap, source: Norm, target: Norm, spectral: float) -> Named:
    """The 2->2 norm times what the two balls differ by: |x|_2 <= sqrt(inputs) |x|_inf, |u|_1 <= sqrt(outputs) |u|_2."""
    factor = (matrix.inputs if source is Norm.LINF else 1) * (matrix.outputs if target is Norm.L1 else 1)
    return spectral * math.sqrt(factor) * (1 + matrix.error), "2->2 norm and dimensions"


def _from_gram(matrix: LinearMap, gram: Array, sums: Array) -> float:
    """The root of the sum of |G_ij|; errors of the entries add up to a share of the squared ``sums`` of magnitudes."""
    total = float(np.abs(gram).sum(axis=1).sum())
    return math.sqrt(total * (1 + 2 * matrix.error) + 2 * matrix.error * float((sums**2).sum())) * (1 + matrix.error)
