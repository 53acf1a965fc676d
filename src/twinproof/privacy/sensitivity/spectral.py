"""The 2->2 norm of a map, from above: by the smaller Gram matrix where it fits, else by what needs no matrix."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from twinproof.privacy.sensitivity.linear_map import LinearMap
from twinproof.privacy.sensitivity.top_eigenvalue import proven_top_eigenvalue

# Largest side of a dense Gram matrix: 128 MiB, and a factorisation of some seconds on one core.
DENSE_LIMIT = 4096
# Products that bring the weights of Schur's test close to the best ones; a few do where it only scales an error.
_SCHUR_STEPS, _SCHUR_STEPS_FOR_ERROR = 30, 3


def fits_dense(side: int) -> bool:
    """Whether a square matrix of that side is small enough to be written down."""
    return side <= DENSE_LIMIT


def has_dense_gram(matrix: LinearMap) -> bool:
    """Whether one of the two Gram matrices is small enough to be written down."""
    return fits_dense(min(matrix.inputs, matrix.outputs))


def spectral_bound(matrix: LinearMap) -> float:
    """An upper bound on the 2->2 norm; within 1e-6 of it where ``has_dense_gram``.

    Guarantees
        Never below the norm: every way to it adds its own rounding. Memory is bounded by ``DENSE_LIMIT``.
    """
    if not has_dense_gram(matrix):
        return min(_root(schur_square(matrix, _SCHUR_STEPS)), _split_bound(matrix))
    schur = schur_square(matrix, _SCHUR_STEPS_FOR_ERROR)
    if schur == 0:
        return 0.0
    gram = matrix.column_gram() if matrix.inputs <= matrix.outputs else matrix.row_gram()
    # The Gram matrix of magnitudes, |A|'|A| or |A||A|', has the same largest eigenvalue on both sides.
    return _root(proven_top_eigenvalue(gram, 2 * matrix.error, schur))


def schur_square(matrix: LinearMap, steps: int) -> float:
    """Schur's test on the matrix of magnitudes: max_i (|A|'|A| v)_i / v_i for positive v bounds its squared norm.

    The best v is that matrix's own top singular vector, so a few power steps from a vector of ones are taken. Every v is
    sound; the exact norm comes out for matrices without negative entries.
    """
    magnitudes = matrix.absolute()
    weights = np.ones((matrix.inputs, 1))
    best = math.inf
    for _ in range(steps):
        seen = magnitudes.adjoint(magnitudes.apply(weights))
        best = min(best, float((seen / weights).max()))
        if best == 0:
            return 0.0
        weights = seen / seen.max() + 1e-3  # kept away from 0, so that nothing is divided by it
    return best * (1 + 4 * matrix.error)


def _split_bound(matrix: LinearMap) -> float:
    """For a large linear layer: the squared norm is at most the sum of those of its blocks of rows; others: infinite."""
    if matrix.patches.shape[2] > 1 or len(matrix.weights) > 1:
        return math.inf
    squares = []
    for start in range(0, matrix.outputs, DENSE_LIMIT):
        rows = slice(start, start + DENSE_LIMIT)
        part = replace(matrix, weights=matrix.weights[:, rows], row_scale=matrix.row_scale[:, rows])
        squares.append(spectral_bound(part) ** 2)
    return _root(sum(squares) * (1 + matrix.error))


def _root(square: float) -> float:
    return math.sqrt(square) * (1 + 2.0**-50)
