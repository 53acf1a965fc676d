"""The largest eigenvalue of a Gram matrix, from above.

Iterative methods find it from below, however well they converge, and a residual only says that some eigenvalue is near. So
the answer of one of them is a guess t, slightly raised, and the proof is a Cholesky factorisation: t I - G has one only if no
eigenvalue of G exceeds t.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import LinAlgError, cholesky, eigvalsh
from scipy.sparse.linalg import ArpackError, eigsh

from twinproof.privacy.sensitivity.float_error import relative_error
from twinproof.privacy.sensitivity.linear_map import Array

# How much a guess is raised, relatively, before it is tried: the first is enough unless the guess was poor.
_RAISES = (1e-9, 1e-7, 1e-5, 1e-3, 1e-1)
# Below this size all eigenvalues together cost next to nothing.
_SMALL = 200


def proven_top_eigenvalue(gram: Array, entry_error: float, magnitude: float) -> float:
    """A number that no eigenvalue of the true Gram matrix exceeds, usually within 1e-8 of the largest.

    ``gram`` is the matrix as computed, each entry to within ``entry_error`` times the same entry of the Gram matrix of
    magnitudes, whose eigenvalues ``magnitude`` bounds.

    Guarantees
        The answer is at least the largest eigenvalue of the true matrix, whatever the guess was. If the factorisation of
        M = t I - G runs to its end in floats, M + E is positive semidefinite for a symmetric E with
        |E_ij| <= c sqrt(M_ii M_jj), c = error of a sum of n + 1 terms (Higham, theorem 10.3; Rump 2006), so its norm is at
        most c trace(M). Where no guess can be proven, ``magnitude`` is the answer.
    """
    size = len(gram)
    try:
        guess = top_eigenvalue_guess(gram)
    except LinAlgError:
        return magnitude
    for raised in _RAISES:
        top = guess * (1 + raised)
        if top >= magnitude:
            break
        if _has_cholesky(gram, top):
            rounding = relative_error(size) * (size * top + float(np.abs(np.diag(gram)).sum()))
            return min(magnitude, (top + rounding + entry_error * magnitude) * (1 + relative_error(0)))
    return magnitude


def top_eigenvalue_guess(gram: Array) -> float:
    """The largest eigenvalue as an eigen-solver sees it: close, and as likely below the truth as above.

    LinAlgError where no solver finds it.
    """
    size = len(gram)
    if size > _SMALL:
        start = np.random.default_rng(0).standard_normal(size)
        try:
            return float(eigsh(gram, k=1, which="LA", v0=start, tol=1e-10, return_eigenvectors=False)[0])
        except ArpackError:
            pass  # no convergence: the slow way is the safe one
    try:
        return float(eigvalsh(gram, subset_by_index=[size - 1, size - 1])[0])
    except LinAlgError:
        # LAPACK finds no single eigenvalue of some small integer matrices, and all of them together.
        return float(eigvalsh(gram)[-1])


def _has_cholesky(gram: Array, top: float) -> bool:
    shifted = -gram
    shifted[np.diag_indices_from(shifted)] += top
    try:
        cholesky(shifted, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return False
    return True
