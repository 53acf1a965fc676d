"""A proof of its own that a layer cannot stretch a change of its input by more than a recorded number.

From l1 the largest column is the norm. Otherwise, for any positive weights y of the inputs (linf only; else 1) and z of the
outputs (l1 only), Cauchy and Schwarz give |A x|_1 <= sqrt(sum z) |diag(z)^-1/2 A diag(y)^-1/2|_2 sqrt(sum y) |x|_inf. So a
number v is proven if t diag(y) - A' diag(1/z) A is positive semidefinite with t = v^2 / (sum y sum z), and that is shown by
one Cholesky factorisation. Weights come from a search that nobody has to trust: bad ones prove nothing.

``least_provable`` returns the claimed number only if the norm is not above ``1 + FLOAT_SLACK`` times it, every rounding
counted: products of A lie within (terms + 8) 2^-53 of themselves, in magnitudes, and a factorisation that runs to its end is
that of a matrix within c sqrt(M_ii M_jj) of M, c = (n + 2) 2^-53 (Higham, theorem 10.3). Both are taken off the diagonal first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy import sparse
from scipy.linalg import LinAlgError, cholesky, cholesky_banded
from scipy.sparse.csgraph import reverse_cuthill_mckee
from scipy.sparse.linalg import ArpackError, eigsh

from twinproof_verify.layers import Array, LayerTooLargeError, Matrix, column_sums, magnitudes, row_sums, transposed

# Two float64 computations of one number.
FLOAT_SLACK = 1e-9
# Largest side of a matrix that is factorised as it is, numbers in the band of a larger one, and products in a Gram matrix.
LARGEST_SIDE, MOST_IN_BAND, MOST_PRODUCTS = 4096, 2**26, 2**31
_UNIT = 2.0**-53
# Numbers whose squares, times any weights, are far from the ends of float64; those of float32 networks are.
_SMALLEST, _LARGEST = 1e-100, 1e100
# Numbers of each coordinate's vector in the search, and after how many steps its weights are tried.
_RANK, _TRIALS = 24, (25, 50, 100, 200, 400)
# Weights are kept this far above zero, relative to their mean: what is tried one after the other.
_FLOORS = (1e-4, 1e-3, 1e-2)
_ASCENTS, _STARTS = 30, 32
# Below this size all eigenvalues together cost next to nothing.
_FEW = 200

Weights = Array | None


def least_provable(matrix: Matrix, source: str, target: str, claimed: float) -> float:
    """``claimed`` if the norm of ``matrix`` is proven not to exceed it; else about the least number that could be proven.

    Raises ``LayerTooLargeError`` where the proof would take more memory or time than the verifier spends.
    """
    with np.errstate(all="ignore"):  # what is not finite proves nothing
        return _least_provable(matrix, source, target, claimed)


def _least_provable(matrix: Matrix, source: str, target: str, claimed: float) -> float:
    largest = float(row_sums(matrix).max())
    if not (_SMALLEST <= claimed <= _LARGEST and largest <= _LARGEST):
        return math.inf
    if source == "l1":
        return max(claimed, _longest_column(matrix, target) * (1 - FLOAT_SLACK))
    if (source, target) == ("l2", "l1"):  # the transposed matrix stretches by as much, from linf to l2
        matrix, source, target = transposed(matrix), "linf", "l2"
    enough = claimed * (1 + FLOAT_SLACK)
    if min(_magnitude_bounds(matrix, source, target)) <= enough:
        return claimed
    needed = math.nextafter(claimed, math.inf)
    for columns, rows, height in _weights(matrix, source, target):
        if height > enough:  # no weights prove less than what the relaxation reaches
            return height
        form = _Weighted(matrix, columns, rows)
        if form.is_proven(enough):
            return claimed
        needed = max(needed, height, form.guess() if columns is None and rows is None else 0.0)
    return needed


def reached(matrix: Matrix, source: str, target: str) -> float:
    """The largest |A x|_target / |x|_source that a short search finds: what no honest number is below."""
    if source == "l1":
        return _longest_column(matrix, target) * (1 - FLOAT_SLACK)
    points = np.random.default_rng(7).standard_normal((matrix.shape[1], _STARTS))
    for _ in range(_ASCENTS):
        outputs = matrix @ _onto_ball(points, source)
        points = matrix.T @ (np.sign(outputs) if target == "l1" else outputs)
    lengths = np.linalg.norm(matrix @ _onto_ball(points, source), ord=1 if target == "l1" else 2, axis=0)
    return float(lengths.max()) * (1 - FLOAT_SLACK)


def _onto_ball(points: Array, source: str) -> Array:
    """Columns brought to the edge of the unit ball, where a norm is largest."""
    if source == "linf":
        return np.where(points < 0, -1.0, 1.0)
    return np.asarray(points / np.maximum(np.linalg.norm(points, axis=0), np.finfo(np.float64).tiny))


def _squared(matrix: Matrix) -> Matrix:
    return matrix * matrix if isinstance(matrix, np.ndarray) else sparse.csr_array(matrix.multiply(matrix))


def _longest_column(matrix: Matrix, target: str) -> float:
    """The norm from l1: the corners of its ball are single coordinates."""
    if target == "l1":
        return float(column_sums(matrix).max())
    return math.sqrt(float(_squared(matrix).sum(axis=0).max()))


def _magnitude_bounds(matrix: Matrix, source: str, target: str) -> Iterator[float]:
    """Where signs do not work against each other, the best bounds: no weights reach them to the last digits.

    Each output by itself goes as far as the sum of its row, and x'Gx <= sum |G_ij| for |x_i| <= 1, G = A'A.
    """
    share = 1 + 2 * _error(sum(matrix.shape))
    if source == "linf":
        rows = row_sums(matrix)
        yield float(rows.sum() if target == "l1" else np.linalg.norm(rows)) * share
    if (source, target) == ("linf", "l2") and matrix.shape[1] <= LARGEST_SIDE:
        total = float(row_sums(_gram(matrix)).sum()) + (share - 1) * float(rows @ rows)
        yield math.sqrt(total * share) * share
    yield math.inf


def _error(terms: int) -> float:
    """Of a sum of so many products, relative to the sum of their magnitudes."""
    return (terms + 8) * _UNIT


def _weights(matrix: Matrix, source: str, target: str) -> Iterator[tuple[Weights, Weights, float]]:
    """Weights of inputs and outputs that may prove most, and what the relaxation behind them has reached.

    A side that is measured in l2 has none. In the relaxation each coordinate is a vector instead of a number; at its top the
    lengths of these vectors, before they are brought to 1, are the best weights. Steps have momentum, which is given up
    whenever the climb falters.
    """
    by_input, by_output = source == "linf", target == "l1"
    yield np.ones(matrix.shape[1]) if by_input else None, np.ones(matrix.shape[0]) if by_output else None, 0.0
    if not by_input and not by_output:
        return
    backwards = transposed(matrix)
    now = _brought_to_one(np.random.default_rng(1).standard_normal((matrix.shape[1], _RANK)), alone=by_input)
    before, speed, height = now, 0, 0.0
    for step in range(1, _TRIALS[-1] + 1):
        answers = matrix @ (now + speed / (speed + 3) * (now - before))
        outputs = np.linalg.norm(answers, axis=1)
        slopes = backwards @ _brought_to_one(answers, alone=by_output)
        inputs = np.linalg.norm(slopes, axis=1)
        before, now = now, _brought_to_one(slopes, alone=by_input)
        lower, height = height, float(inputs.sum() if by_input else np.linalg.norm(inputs))
        speed = speed + 1 if height >= lower else 0
        if step in _TRIALS:
            for floor in _FLOORS:
                yield (
                    inputs + floor * inputs.mean() if by_input else None,
                    outputs + floor * outputs.mean() if by_output else None,
                    height,
                )


def _brought_to_one(vectors: Array, *, alone: bool) -> Array:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True) if alone else np.linalg.norm(vectors)
    return np.asarray(vectors / np.maximum(lengths, np.finfo(np.float64).tiny))


class _Weighted:
    """diag(z)^-1/2 A diag(y)^-1/2 by the Gram matrix of its shorter side, and what its 2->2 norm is multiplied by."""

    def __init__(self, matrix: Matrix, columns: Weights, rows: Weights) -> None:
        # The weights are the squares of these roots, as real numbers.
        roots = [None if weights is None else np.sqrt(weights) for weights in (rows, columns)]
        self.factor = math.prod(float((root**2).sum()) for root in roots if root is not None)
        scaled = _scaled(matrix, *roots)
        scaled = scaled if scaled.shape[1] <= scaled.shape[0] else transposed(scaled)
        self.side, self.gram = int(scaled.shape[1]), _gram(scaled)
        self.error = 2 * _error(sum(matrix.shape))
        # x'Ex <= sum_i x_i^2 sum_j |E_ij|, where |E| is at most a share of the Gram matrix of magnitudes.
        self.margin = self.error * np.asarray(transposed(magnitudes(scaled)) @ row_sums(scaled))

    def is_proven(self, norm: float) -> bool:
        """Whether the norm of the matrix is at most ``norm``."""
        top = norm**2 / self.factor * (1 - self.error)
        return _has_cholesky(self.gram, top * (1 - 2 * self.side * (self.side + 2) * _UNIT) - self.margin)

    def guess(self) -> float:
        """What could be proven, as an eigen-solver sees it."""
        try:
            if self.side <= _FEW and isinstance(self.gram, np.ndarray):
                top = float(np.linalg.eigvalsh(self.gram)[-1])
            else:
                start = np.random.default_rng(0).standard_normal(self.side)
                top = float(eigsh(self.gram, k=1, which="LA", v0=start, tol=1e-9, return_eigenvectors=False)[0])
        except (ArpackError, LinAlgError):
            return math.inf
        return math.sqrt(max(top, 0.0) * self.factor)


def _scaled(matrix: Matrix, rows: Weights, columns: Weights) -> Matrix:
    rows = np.ones(matrix.shape[0]) if rows is None else 1 / rows
    columns = np.ones(matrix.shape[1]) if columns is None else 1 / columns
    if isinstance(matrix, np.ndarray):
        return np.asarray(matrix * rows[:, None] * columns)
    return sparse.csr_array(sparse.diags_array(rows) @ matrix @ sparse.diags_array(columns))


def _gram(matrix: Matrix) -> Matrix:
    """The products of its columns; refused where they would take too long, or could not be factorised in the end."""
    if isinstance(matrix, np.ndarray):
        if matrix.shape[1] > LARGEST_SIDE:
            raise LayerTooLargeError(f"{matrix.shape[1]} inputs, and no fewer outputs")
        return matrix.T @ matrix
    products = int((np.diff(matrix.indptr).astype(np.int64) ** 2).sum())
    if products > MOST_PRODUCTS:
        raise LayerTooLargeError(f"{products} products in its Gram matrix")
    gram = sparse.csr_array(matrix.T @ matrix)
    return np.asarray(gram.toarray()) if matrix.shape[1] <= LARGEST_SIDE else gram


def _has_cholesky(gram: Matrix, diagonal: Array) -> bool:
    """Whether diag(``diagonal``) - ``gram`` can be factorised in floats."""
    try:
        if not isinstance(gram, np.ndarray):
            cholesky_banded(_band(gram, diagonal), lower=True, overwrite_ab=True, check_finite=False)
            return True
        shifted = -gram
        shifted[np.diag_indices_from(shifted)] += diagonal
        cholesky(shifted, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError:
        return False
    return True


def _band(gram: sparse.csr_array, diagonal: Array) -> Array:
    """diag(``diagonal``) - ``gram`` below its diagonal, in an order of the coordinates that keeps neighbours together."""
    order = reverse_cuthill_mckee(gram, symmetric_mode=True)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    entries = sparse.coo_array(gram)
    rows, columns = place[entries.row].astype(np.int64), place[entries.col].astype(np.int64)
    width = int(np.abs(rows - columns).max(initial=0)) + 1
    if width * len(order) > MOST_IN_BAND:
        raise LayerTooLargeError(f"a Gram matrix of {len(order)} rows and a band of {width}")
    band = np.zeros((width, len(order)))
    below = rows >= columns
    band[rows[below] - columns[below], columns[below]] = -entries.data[below]
    band[0] += diagonal[order]
    return band
