"""How far a layer's output can move, in l1 or l2, when its input moves by one unit of l1, l2 or linf."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from torch import nn

from twinproof.errors import ConfigError
from twinproof.privacy.sensitivity.bound import Bound, Norm
from twinproof.privacy.sensitivity.cheap_bounds import Named, dimension_bound, largest_column, magnitude_bounds
from twinproof.privacy.sensitivity.layer_map import layer_map
from twinproof.privacy.sensitivity.linear_map import LinearMap
from twinproof.privacy.sensitivity.reached import best_input, reached_value
from twinproof.privacy.sensitivity.relaxation import Factors, ascend, relaxed_bound
from twinproof.privacy.sensitivity.spectral import has_dense_gram, spectral_bound
from twinproof.privacy.sensitivity.symbol import symbol_bound

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
    source, target = _checked_norms(source, target)
    matrix = layer_map(layer, tuple(input_shape), scale)
    factors: Factors | None = None
    if not matrix.row_scale.any():
        return Bound(0.0, 0.0, "all weights are zero")
    if source is Norm.L1:
        value, method = largest_column(matrix, target)
    else:
        if has_dense_gram(matrix) and (source, target) != (Norm.L2, Norm.L2):
            factors = ascend(matrix, source, target)
        value, method = min(_upper_bounds(layer, tuple(input_shape), matrix, source, target, factors))
    point = best_input(matrix, source, target, None if factors is None else factors.inputs)
    lower = reached_value(matrix, point, source, target)
    return Bound(_scaled_up(value, matrix.exponent), _scaled_down(lower, matrix.exponent), method)


def _upper_bounds(
    layer: nn.Module, shape: tuple[int, ...], matrix: LinearMap, source: Norm, target: Norm, factors: Factors | None
) -> list[Named]:
    """All bounds that hold for this pair of norms, each with the name of its proof."""
    spectral: list[Named] = [
        (spectral_bound(matrix), "Gram matrix" if has_dense_gram(matrix) else "Schur test or blocks of rows")
    ]
    if not has_dense_gram(matrix):
        spectral.append((symbol_bound(layer, shape, matrix), "symbol on a torus"))
    if (source, target) == (Norm.L2, Norm.L2):
        return spectral
    found = [dimension_bound(matrix, source, target, min(spectral)[0]), *magnitude_bounds(matrix, source, target)]
    if factors is not None:
        found.append((relaxed_bound(matrix, source, target, factors), "semidefinite dual"))
    return found


def _checked_norms(source: Norm | str, target: Norm | str) -> tuple[Norm, Norm]:
    for name, given, allowed in (("source", source, tuple(Norm)), ("target", target, TARGETS)):
        if given not in [str(norm) for norm in allowed]:
            raise ConfigError(
                f"no operator norm is known for this {name}",
                where=name,
                got=given,
                wanted=", ".join(allowed),
                fix="measure the layer's output in l2 for Gaussian noise, in l1 for Laplace noise",
            )
    return Norm(source), Norm(target)


def _scaled_up(value: float, exponent: int) -> float:
    """value * 2**exponent, rounded up; infinite where no float is large enough."""
    with np.errstate(over="ignore", under="ignore"):
        return math.nextafter(float(np.ldexp(value, exponent)), math.inf)


def _scaled_down(value: float, exponent: int) -> float:
    """value * 2**exponent, rounded down."""
    with np.errstate(over="ignore", under="ignore"):
        scaled = min(float(np.ldexp(value, exponent)), float(np.finfo(np.float64).max))
    return max(0.0, math.nextafter(scaled, 0.0))
