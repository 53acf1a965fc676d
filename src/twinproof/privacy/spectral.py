"""Upper bounds on 2->2 norms, and the weights that turn harder norms into one.

On a torus that is larger than the input by the kernel's reach, a convolution without stride is a block-diagonal matrix in
Fourier space. The layer is that matrix with rows (stride, border) and columns (zero padding) struck out, which cannot raise
its norm. A stride folds the frequencies onto each other; treating them together keeps what the stride gains.

Iterative eigen-solvers approach the top eigenvalue from below, and a residual only says that some eigenvalue is near. So their
answer is a guess t, slightly raised, and the proof is a Cholesky factorisation: t I - G has one only if no eigenvalue of the
Gram matrix G exceeds t.

For positive numbers y (one for each input) and z (one for each output) and every x with |x_i| <= 1, by Cauchy-Schwarz twice,

    |A x|_1 <= sqrt(sum z) |diag(z)^-1/2 A diag(y)^-1/2|_{2->2} sqrt(sum y),

and without one of the two sums where that side is measured in l2. The best y and z give the dual of the semidefinite
relaxation: inf->2 and 2->1 to within sqrt(pi/2) of the norm (Nesterov 1998), inf->1 to within 1.7823 (Grothendieck's constant;
Krivine 1979). Any y and z give a bound. That is the feasibility repair: an ascent that stopped early costs tightness only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cholesky, eigvalsh
from scipy.sparse.linalg import ArpackError, eigsh
from torch import nn

from twinproof.privacy.linear_maps import Array, Convolution, LinearMap, Norm, relative_error

# Complex numbers in the spectra of one group of kernels: 256 MiB.
_MOST_NUMBERS = 2**24


def symbol_bound(layer: nn.Module, shape: tuple[int, ...], matrix: LinearMap) -> float:
    """An upper bound on the 2->2 norm of the map of a convolution; infinite for other layers and beyond a size.

    Where outputs of one channel are divided by different numbers the smallest of them counts. The Fourier transform's error,
    over all frequencies together, is a few roundings times log2(size) of the spectrum's length (Higham, theorem 24.2): that
    share of the whole length is added to the largest norm.
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
    """An upper bound on the 2->2 norm; within 1e-6 of it where ``has_dense_gram``. ``DENSE_LIMIT`` bounds its memory."""
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


# Columns of the low-rank factors: enough that the ascent has no bad local optimum in practice.
_RANK = 16
_MOST_DUAL_STEPS = 200
_DUAL_CONVERGED = 1e-6
# Weights are raised by a share of their mean: tiny ones are the least certain, and cost most where they are too small.
_FLOORS = (1e-3, 1e-2)


@dataclass(frozen=True)
class Factors:
    """Low-rank factors of the relaxation's primal: unit rows (l1 output, linf input) or unit length as a whole (l2).

    ``rows`` and ``columns`` are the lengths of the rows of A times the other factor: at the optimum the dual's z and y.
    """

    inputs: Array
    rows: Array
    columns: Array


def relaxed_bound(matrix: LinearMap, source: Norm, target: Norm, factors: Factors) -> float:
    """The bound above for the weights that the ascent found; a bound for any, as the 2->2 norm of the new map is proven."""
    best = math.inf
    for floor in _FLOORS:
        rows = _multipliers(factors.rows, floor) if target is Norm.L1 else None
        columns = _multipliers(factors.columns, floor) if source is Norm.LINF else None
        bound = spectral_bound(matrix.rescaled(rows, columns)) * _length_of_inverse(rows) * _length_of_inverse(columns)
        best = min(best, bound)
    return best


def ascend(matrix: LinearMap, source: Norm, target: Norm, steps: int = _MOST_DUAL_STEPS) -> Factors:
    """Alternating maximisation of <U, A V> over factors U of the outputs and V of the inputs; it never decreases."""
    rank = max(1, min(_RANK, matrix.block))
    inputs = _unit(np.random.default_rng(0).standard_normal((matrix.inputs, rank)), by_row=source is Norm.LINF)
    reached = 0.0
    rows = columns = np.empty(0)
    for _ in range(steps):
        answers = matrix.apply(inputs)
        rows = np.linalg.norm(answers, axis=1)
        slopes = matrix.adjoint(_unit(answers, by_row=target is Norm.L1))
        columns = np.linalg.norm(slopes, axis=1)
        inputs = _unit(slopes, by_row=source is Norm.LINF)
        before, reached = reached, float(columns.sum() if source is Norm.LINF else np.linalg.norm(columns))
        if reached <= before * (1 + _DUAL_CONVERGED):
            break
    return Factors(inputs, rows, columns)


def _unit(values: Array, *, by_row: bool) -> Array:
    """Rows, or the whole, divided by their length; zeros stay."""
    lengths = np.linalg.norm(values, axis=1, keepdims=True) if by_row else np.linalg.norm(values)
    return np.asarray(values / np.maximum(lengths, np.finfo(np.float64).tiny))


def _multipliers(weights: Array, floor: float) -> Array:
    """One over the square roots of the weights."""
    mean = float(weights.mean()) or 1.0
    return np.asarray(1 / np.sqrt(weights / mean + floor))


def _length_of_inverse(multipliers: Array | None) -> float:
    if multipliers is None:
        return 1.0
    return float(np.linalg.norm(1 / multipliers)) * (1 + relative_error(multipliers.size))
