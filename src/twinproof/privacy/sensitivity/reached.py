"""Values that actual inputs reach: lower bounds on an operator norm, to show how tight the upper ones are."""

from __future__ import annotations

import numpy as np
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

from twinproof.privacy.sensitivity.bound import Norm
from twinproof.privacy.sensitivity.float_error import relative_error
from twinproof.privacy.sensitivity.linear_map import Array, LinearMap

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
        return _best_unit_vector(matrix, target)
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
    """|A x| / |x| for one x, rounded down by a bound on its own error; 0 for x = 0.

    Guarantees
        Never above the norm: the product's error is at most ``matrix.error`` of the same product of magnitudes.
    """
    column = point[:, None]
    length = float(_lengths(column, source)[0]) * (1 + relative_error(point.size))
    if length == 0:
        return 0.0
    answer = float(_lengths(matrix.apply(column), target)[0])
    error = matrix.error * float(_lengths(matrix.absolute().apply(np.abs(column)), target)[0])
    return max(0.0, (answer * (1 - matrix.error) - 2 * error) / length)


def _best_unit_vector(matrix: LinearMap, target: Norm) -> Array:
    sums = (matrix.absolute() if target is Norm.L1 else matrix.squared()).adjoint(np.ones((matrix.outputs, 1)))
    unit = np.zeros(matrix.inputs)
    unit[int(sums.argmax())] = 1
    return unit


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
