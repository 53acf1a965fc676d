"""What a change of the input costs where noise is drawn on the input and behind the first layer.

The pass is h = theta'(x + e1) + e2 with e1 of scale b1 on every input and e2 of scale b2 on every output, then anything else.

Laplace noise. Proof of the single-pass rate. Let x' = x + a and split a = a1 + a2 in any way. Then

    theta'(x' + e1) + e2 = theta'(x + (e1 + a1)) + (e2 + theta' a2):

at x' the network sees what it would see at x, had the two noises come out shifted by a1 and theta' a2. The joint density of
(e1, e2) changes under that shift by a factor of at most exp(|a1|_1 / b1 + |theta' a2|_1 / b2), whatever the two values are. So
for every f into [0, 1], E f at x is at most e^N(a) times E f at x', and likewise with x and x' exchanged, where

    N(a) = min over a = a1 + a2 of |a1|_1 / b1 + |theta' a2|_1 / b2.

The splits (a, 0) and (0, a) show that N(a) is at most the *smaller* of the two mechanisms' own costs; it is never their sum,
which is what sequential composition charges for two separate passes (Theorem 5 and Corollary 1 of the paper). Those need it:
an attacker of f^x * f^h sees x twice. Here x is seen once, through both noises.
Coordinate by coordinate: give each j wholly to the place where it costs less. By the triangle inequality |theta' a2|_1 <=
sum_j |a_j| s_j with s_j = sum_k |theta_jk|, so N(a) <= sum_j |a_j| min(1/b1, s_j/b2): the dual norm of these minima.

Gaussian noise, and the Gaussian bound on Laplace noise. By the same split a change costs what a shift of (e1, e2) does that
has the l2 length sqrt(|a1|^2 / b1^2 + |theta' a2|^2 / b2^2), in deviations. With a1 = (I - K) a and a2 = K a for any matrix K
that is at most |M a|, M being (I - K) / b1 above theta' K / b2; with G = theta theta' the best K is
(I / b1^2 + G / b2^2)^-1 / b1^2, for which M'M = P = (b1^2 I + b2^2 G^-1)^-1, the parallel sum. ``joint_norm`` bounds |M a| over
changes a of length 1. K as it is computed need not be the best, and every rounding of M'M and of its Cholesky factor R
(R'R = M'M + what is added for them) is paid for: |M a| <= |R a|, whose norm is bounded as any layer's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cholesky
from torch import nn

from twinproof import checks
from twinproof.certification.bounds import Composition, PureEpsilon
from twinproof.certification.noise_site import NormBound, identity_norm, layer_norm
from twinproof.layers.noise import Law
from twinproof.privacy.linear_maps import Array, LinearMap, Norm, layer_map, relative_error
from twinproof.privacy.operator_norm import operator_norm
from twinproof.privacy.spectral import fits_dense, schur_square

# Products that bound the layer's 2->2 norm, which only scales what is added for rounding; above it the noise of the input is
# all that counts, and squares would lose it.
_STEPS, _LARGEST = 3, 1e6


def outgoing_sums(layer: nn.Module, shape: tuple[int, ...], scale: ArrayLike | None = None) -> Array:
    """(inputs,): how far the layer moves in l1 when one coordinate of its input moves by 1; sum_k |theta_jk| / S_k.

    Never below the sum of the column of the layer's own matrix, each output divided by its entry of ``scale``.
    """
    matrix = layer_map(layer, shape, scale)
    return _upwards(matrix.absolute().adjoint(np.ones((matrix.outputs, 1))), matrix.error, matrix.exponent)


def incoming_sums(layer: nn.Module, shape: tuple[int, ...], scale: ArrayLike | None = None) -> Array:
    """(outputs,): how far each output can move when every coordinate of the input moves by at most 1; sum_j |theta_jk| / S_k.

    Never below the sum of the row of the layer's own matrix, as in ``outgoing_sums``.
    """
    matrix = layer_map(layer, shape, scale)
    return _upwards(matrix.absolute().apply(np.ones((matrix.inputs, 1))), matrix.error, matrix.exponent)


def _upwards(sums: Array, error: float, exponent: int) -> Array:
    return np.nextafter(np.ldexp(sums[:, 0] * (1 + error), exponent), np.inf, where=sums[:, 0] > 0, out=np.zeros(len(sums)))


@dataclass(frozen=True)
class Rates:
    """Epsilon per unit of a change, by each rule, rounded up: the radius at a level epsilon is epsilon over the rate.

    ``input`` and ``hidden`` are those of one noise alone (kappa = epsilon / input, phi = epsilon / hidden), ``split`` that of
    the best split by coordinates.

    Guarantees
        Each of the five is sound for one pass with fresh draws of both noises, by the proof above; single_pass <= max_rule <=
        composed, and single_pass <= split, to the last bit.
    """

    input: float
    hidden: float
    split: float

    @property
    def composed(self) -> float:
        """Corollary 1 as published: the radius kappa phi / (kappa + phi), at most half of the larger one."""
        return math.nextafter(self.input + self.hidden, math.inf)

    @property
    def max_rule(self) -> float:
        """The radius max(kappa, phi): all of the change to the cheaper place."""
        return min(self.input, self.hidden)

    @property
    def single_pass(self) -> float:
        """The least that is proven here. ``hidden`` knows signs of weights, which ``split`` does not, so either can win."""
        return min(self.max_rule, self.split)


def rates(
    layer: nn.Module,
    shape: tuple[int, ...],
    norm: Norm | str,
    input_scale: float,
    hidden_scale: float,
    scale: NDArray[np.float64] | None = None,
) -> Rates:
    """The rates of noise Lap(``input_scale``) on inputs of ``shape`` and Lap(``hidden_scale``) behind ``layer``.

    Changes are measured in ``norm``; ``scale`` multiplies the hidden noise of each output. The scales must be those that are
    drawn at inference: noise that was drawn once and kept gives nothing, and a radius from noise that is stated to be psi
    times larger (Appendix N) would be psi times too large.
    """
    checks.positive_value("scale of the noise on the input", input_scale)
    checks.positive_value("scale of the noise behind the layer", hidden_scale)
    leaving = outgoing_sums(layer, shape, scale)
    scales = np.ones(layer_map(layer, shape).outputs) if scale is None else scale
    return Rates(
        input=_quotient(identity_norm(Law.LAPLACE, norm, len(leaving)).value, input_scale),
        hidden=_quotient(layer_norm(layer, shape, Law.LAPLACE, norm, scales).value, hidden_scale),
        split=_dual_norm(np.minimum(_quotient(1.0, input_scale), np.nextafter(leaving / hidden_scale, np.inf)), Norm(norm)),
    )


def _quotient(value: float, divisor: float) -> float:
    """Rounded up."""
    return math.nextafter(value / divisor, math.inf)


def _dual_norm(costs: NDArray[np.float64], norm: Norm) -> float:
    """The most that changes of length 1 in ``norm`` can cost, at these costs for each coordinate; rounded up."""
    if norm is Norm.L1:
        return float(costs.max())
    # Squares of costs below 1e-154 would underflow: powers of two keep them near 1, and change nothing else.
    exponent = int(np.frexp(costs.max())[1])
    near_one = np.ldexp(costs, -exponent)
    total = float(near_one.sum()) if norm is Norm.LINF else math.sqrt(float((near_one**2).sum()))
    return math.ldexp(total * (1 + relative_error(len(costs))), exponent)


def joint_norm(
    layer: nn.Module, shape: tuple[int, ...], norm: str, input_scale: float, hidden_scale: float, scale: NDArray[np.float64]
) -> NormBound:
    """The most deviations, in l2, that a change of length 1 in ``norm`` can cost under both noises: by P, or by one alone."""
    matrix = layer_map(layer, shape, scale)
    alone = _quotient(identity_norm(Law.GAUSSIAN, norm, matrix.inputs).value, input_scale)
    behind = _quotient(layer_norm(layer, shape, Law.GAUSSIAN, norm, scale).value, hidden_scale)
    found = [(behind, "first layer"), (alone, "input")]
    if fits_dense(matrix.inputs) and (factor := _parallel_factor(matrix, input_scale, hidden_scale)) is not None:
        both = nn.Linear(matrix.inputs, matrix.inputs, bias=False, dtype=torch.float64)
        with torch.no_grad():
            both.weight.copy_(torch.from_numpy(factor))
        bound = operator_norm(both, (matrix.inputs,), source=norm, target=Norm.L2)
        found.append((_quotient(bound.value, input_scale), f"both, {bound.method}"))
    value, name = min(found)
    return NormBound(value, f"single pass: {name}")


def _parallel_factor(matrix: LinearMap, input_scale: float, hidden_scale: float) -> Array | None:
    """R with |M a| <= |R a| / ``input_scale`` for every a; None where floats do not hold it."""
    ratio = math.ldexp(input_scale / hidden_scale, matrix.exponent)
    largest = math.sqrt(schur_square(matrix, steps=_STEPS)) * ratio
    if not largest < _LARGEST:
        return None
    gram, one = matrix.column_gram() * ratio**2, np.eye(matrix.inputs)
    rest = np.linalg.solve(one + gram, one)
    square = (one - rest).T @ (one - rest) + rest.T @ gram @ rest
    # Both Gram matrices, products of magnitudes, and the factorisation: 16 times the share of any one of them is more than all.
    magnitude = float(np.linalg.norm(one - rest)) ** 2 + (float(np.linalg.norm(rest)) * largest) ** 2
    added = 16 * max(matrix.error, relative_error(matrix.inputs)) * magnitude
    try:
        return np.asarray(cholesky((square + square.T) / 2 + added * one), dtype=np.float64)
    except LinAlgError:
        return None


def single_pass_radius(low: ArrayLike, high: ArrayLike, found: Rates) -> NDArray[np.float64]:
    """The size below which no change can change the answer, in the norm of the rates; elementwise, rounded down.

    ``low`` is below the expected score of the top class, ``high`` above every other one's, for fresh draws of both noises in
    every pass. A change of size r keeps every score and its complement within e^(rate * r), which is all that ``PureEpsilon``
    asks of a shift of length rate * r. Never below ``composition_radius`` of the same numbers.
    """
    return _downwards(PureEpsilon().reach(low, high), found.single_pass)


def composition_radius(low: ArrayLike, high: ArrayLike, found: Rates) -> NDArray[np.float64]:
    """The same by Corollary 1 as published, at the largest epsilon that Eq. 12 allows: kappa phi / (kappa + phi)."""
    return _downwards(Composition().reach(low, high), found.composed)


def _downwards(reach: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # a layer of zeros moves nothing: no change is too large
        exact = reach / rate
    return np.asarray(np.where((reach > 0) & np.isfinite(exact), np.nextafter(exact, 0.0), exact), dtype=np.float64)
