"""Weights that turn the norms which are hard to compute into a 2->2 norm, by the semidefinite relaxation's dual.

For positive numbers y (one for each input) and z (one for each output) and every x with |x_i| <= 1, by Cauchy-Schwarz twice,

    |A x|_1 <= sqrt(sum z) |diag(z)^-1/2 A diag(y)^-1/2|_{2->2} sqrt(sum y),

and without one of the two sums where that side is measured in l2. The best y and z give the dual of the semidefinite
relaxation: inf->2 and 2->1 to within sqrt(pi/2) of the norm (Nesterov 1998), inf->1 to within 1.7823 (Grothendieck's constant;
Krivine 1979). Any y and z give a bound. That is the feasibility repair: an ascent that stopped early costs tightness only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from twinproof.privacy.sensitivity.bound import Norm
from twinproof.privacy.sensitivity.float_error import relative_error
from twinproof.privacy.sensitivity.linear_map import Array, LinearMap
from twinproof.privacy.sensitivity.spectral import spectral_bound

# Columns of the low-rank factors: enough that the ascent has no bad local optimum in practice.
_RANK = 16
_MOST_STEPS = 200
_CONVERGED = 1e-6
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
    """The bound above for the weights that the ascent found.

    Guarantees
        Never below the norm, whatever ``factors`` holds: the 2->2 norm of the reweighted map is proven, and weights are
        taken as the exact floats that were multiplied with.
    """
    best = math.inf
    for floor in _FLOORS:
        rows = _multipliers(factors.rows, floor) if target is Norm.L1 else None
        columns = _multipliers(factors.columns, floor) if source is Norm.LINF else None
        bound = spectral_bound(matrix.rescaled(rows, columns)) * _length_of_inverse(rows) * _length_of_inverse(columns)
        best = min(best, bound)
    return best


def ascend(matrix: LinearMap, source: Norm, target: Norm, steps: int = _MOST_STEPS) -> Factors:
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
        if reached <= before * (1 + _CONVERGED):
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
