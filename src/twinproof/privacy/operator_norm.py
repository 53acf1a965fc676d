"""How far a layer's output can move when its input moves: operator norms that are never below the truth."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import nn

from twinproof import checks
from twinproof.privacy.linear_maps import Array, Bound, LinearMap, Norm, layer_map, relative_error
from twinproof.privacy.spectral import Factors, ascend, fits_dense, has_dense_gram, relaxed_bound, spectral_bound, symbol_bound

Named = tuple[float, str]


def _column_sums(matrix: LinearMap, target: Norm) -> Array:
    """Of each column, the sum of magnitudes (l1) or of squares (l2)."""
    entries = matrix.absolute() if target is Norm.L1 else matrix.squared()
    return entries.adjoint(np.ones((matrix.outputs, 1)))


def _largest_column(matrix: LinearMap, target: Norm) -> Named:
    """The norm from l1, exactly: the l1 ball's corners are the unit vectors, so some column reaches it."""
    largest = float(_column_sums(matrix, target).max())
    return (largest if target is Norm.L1 else math.sqrt(largest)) * (1 + matrix.error), "largest column"


def magnitude_bounds(matrix: LinearMap, source: Norm, target: Norm) -> list[Named]:
    """Bounds from the entries' magnitudes alone: exact where a sign pattern makes all entries work together.

    With a_k the rows: |a_k x| <= |a_k|_1 |x|_inf and <= |a_k|_2 |x|_2, added up over k in the target's norm. x'Gx <= sum |G_ij|
    for |x_i| <= 1, and the same for the rows' Gram matrix, as the 2->1 norm of a matrix is the inf->2 norm of its transpose.
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


_STARTS = 16
_MOST_STEPS = 300
_CONVERGED = 1e-9
_SMALLEST_FOR_LANCZOS = 20


def best_input(matrix: LinearMap, source: Norm, target: Norm, factors: Array | None = None) -> Array:
    """The best (inputs,) vector of the source's unit ball that an ascent from many starts finds.

    Each step maximises the output's norm linearised at the last point over the ball, which never lowers it. ``factors``
    (inputs, rank) of the relaxation give half of the starts, by projection on random directions.
    """
    if source is Norm.L1:
        return np.asarray(np.eye(1, matrix.inputs, int(_column_sums(matrix, target).argmax()))[0])
    if source is target and (top := _top_singular_vector(matrix)) is not None:
        return top
    random, starts = np.random.default_rng(1), max(1, min(_STARTS, matrix.block))
    points = random.standard_normal((matrix.inputs, starts))
    if factors is not None:
        half = starts // 2
        points[:, :half] = factors @ random.standard_normal((factors.shape[1], half))
    points = _onto_sphere(points, source)
    best = np.zeros(points.shape[1])
    for _ in range(_MOST_STEPS):
        answers = matrix.apply(points)
        before, best = best, _lengths(answers, target)
        if (best <= before * (1 + _CONVERGED)).all():
            break
        slopes = matrix.adjoint(np.where(answers < 0, -1.0, 1.0) if target is Norm.L1 else answers)
        points = _onto_sphere(slopes, source)
    return np.asarray(points[:, int(np.argmax(_lengths(matrix.apply(points), target)))])


def reached_value(matrix: LinearMap, point: Array, source: Norm, target: Norm) -> float:
    """|A x| / |x| for one x; 0 for x = 0. Never above the norm: a bound on the product's own error is taken off."""
    column = point[:, None]
    length = float(_lengths(column, source)[0]) * (1 + relative_error(point.size))
    if length == 0:
        return 0.0
    answer = float(_lengths(matrix.apply(column), target)[0])
    error = matrix.error * float(_lengths(matrix.absolute().apply(np.abs(column)), target)[0])
    return max(0.0, (answer * (1 - matrix.error) - 2 * error) / length)


def _top_singular_vector(matrix: LinearMap) -> Array | None:
    """For 2->2, where plain ascent is slow; nothing for maps too small for Lanczos' method, or if it does not converge."""
    if matrix.inputs < _SMALLEST_FOR_LANCZOS:
        return None

    def gram_times(vector: Array) -> Array:
        return matrix.adjoint(matrix.apply(vector.reshape(-1, 1))).reshape(-1)

    operator: LinearOperator[np.float64] = LinearOperator((matrix.inputs, matrix.inputs), matvec=gram_times, dtype=np.float64)
    start = np.random.default_rng(2).standard_normal(matrix.inputs)
    try:
        _, vectors = eigsh(operator, k=1, which="LA", v0=start, tol=1e-9)
    except ArpackError:
        return None
    return np.asarray(vectors[:, 0], dtype=np.float64)


def _lengths(vectors: Array, norm: Norm) -> Array:
    order = {Norm.L1: 1, Norm.L2: 2, Norm.LINF: np.inf}[norm]
    return np.asarray(np.linalg.norm(vectors, ord=order, axis=0))


def _onto_sphere(slopes: Array, source: Norm) -> Array:
    """The point of the unit ball where each linear function is largest."""
    if source is Norm.LINF:
        return np.where(slopes < 0, -1.0, 1.0)
    return slopes / np.maximum(_lengths(slopes, Norm.L2), np.finfo(np.float64).tiny)


TARGETS = (Norm.L1, Norm.L2)


def operator_norm(
    layer: nn.Module,
    input_shape: tuple[int, ...],
    source: Norm | str = Norm.L2,
    target: Norm | str = Norm.L2,
    scale: ArrayLike | None = None,
) -> Bound:
    """The largest |A x|_target / |x|_source of a linear or convolution layer, as a bound from above and a value reached.

    ``input_shape`` is that of one input, without the batch. A is the layer's linear part with each output divided by its
    entry of ``scale`` (in the layer's order): ``Redistribution.scales()`` for noise that is redistributed by r, the
    deviations for any other diagonal covariance, nothing for equal noise. Weights are read now: ask again after training.

    Guarantees
        ``value`` is never below the norm of the layer with exactly these weights, in real arithmetic: every rounding and
        every error of an eigen-solver is added. From l1 it is the norm itself; 2->2 is within 1e-6 of it where the layer
        has at most 4,096 inputs or outputs. The others are NP-hard: ``value`` is the best of all bounds that are known, at
        that size at most about sqrt(pi/2) (inf->2, 2->1) or 1.79 (inf->1) times the norm if the ascent converged, and
        ``lower`` shows how far it can be off. Larger layers have bounds too, looser ones, in less than about a gigabyte.
    """
    checks.one_of(tuple(Norm), source=source)
    checks.one_of(TARGETS, target=target, fix="measure the output in l2 for Gaussian noise, in l1 for Laplace noise")
    source, target = Norm(source), Norm(target)
    matrix = layer_map(layer, tuple(input_shape), scale)
    factors: Factors | None = None
    if not matrix.row_scale.any():
        return Bound(0.0, 0.0, "all weights are zero")
    if source is Norm.L1:
        value, method = _largest_column(matrix, target)
    else:
        if has_dense_gram(matrix) and (source, target) != (Norm.L2, Norm.L2):
            factors = ascend(matrix, source, target)
        value, method = min(_upper_bounds(layer, tuple(input_shape), matrix, source, target, factors))
    point = best_input(matrix, source, target, None if factors is None else factors.inputs)
    lower = reached_value(matrix, point, source, target)
    upper = math.nextafter(_times_power(value, matrix.exponent), math.inf)
    reached = min(_times_power(lower, matrix.exponent), float(np.finfo(np.float64).max))
    return Bound(upper, max(0.0, math.nextafter(reached, 0.0)), method)


def _upper_bounds(
    layer: nn.Module, shape: tuple[int, ...], matrix: LinearMap, source: Norm, target: Norm, factors: Factors | None
) -> list[Named]:
    """All bounds that hold for this pair of norms, each with the name of its proof."""
    spectral: list[Named] = [(spectral_bound(matrix), "Gram matrix")]
    if not has_dense_gram(matrix):
        spectral = [(spectral[0][0], "Schur test or blocks of rows"), (symbol_bound(layer, shape, matrix), "symbol on a torus")]
    if (source, target) == (Norm.L2, Norm.L2):
        return spectral
    found = [dimension_bound(matrix, source, target, min(spectral)[0]), *magnitude_bounds(matrix, source, target)]
    if factors is not None:
        found.append((relaxed_bound(matrix, source, target, factors), "semidefinite dual"))
    return found


def _times_power(value: float, exponent: int) -> float:
    """value * 2**exponent; infinite where no float is large enough."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.ldexp(value, exponent))
