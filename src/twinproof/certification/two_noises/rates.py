"""How much epsilon one unit of a change costs where Laplace noise is drawn at two places of one pass.

The pass is h = theta'(x + e1) + e2 with e1 ~ Lap(b1) on every input and e2 ~ Lap(b2) on every output, then anything else.

Proof of the single-pass rate. Let x' = x + a and split a = a1 + a2 in any way. Then

    theta'(x' + e1) + e2 = theta'(x + (e1 + a1)) + (e2 + theta' a2):

at x' the network sees what it would see at x, had the two noises come out shifted by a1 and theta' a2. The joint density of
(e1, e2) changes under that shift by a factor of at most exp(|a1|_1 / b1 + |theta' a2|_1 / b2), whatever the two values are. So
for every f into [0, 1], E f at x is at most e^N(a) times E f at x', and likewise with x and x' exchanged, where

    N(a) = min over a = a1 + a2 of |a1|_1 / b1 + |theta' a2|_1 / b2.

The splits (a, 0) and (0, a) show that N(a) is at most the *smaller* of the two mechanisms' own costs; it is never their sum,
which is what sequential composition charges two separate passes with (Theorem 5 and Corollary 1 of the paper). Those need it:
an attacker of f^x * f^h sees x twice. Here x is seen once, through both noises.
Coordinate by coordinate: give each j wholly to the place where it costs less. By the triangle inequality |theta' a2|_1 <=
sum_j |a_j| s_j with s_j = sum_k |theta_jk|, so N(a) <= sum_j |a_j| min(1/b1, s_j/b2): the dual norm of these minima.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from twinproof.certification.layer_norm_bound import identity_norm, layer_norm
from twinproof.certification.two_noises.sensitivities import incoming_sums, outgoing_sums
from twinproof.layers.noise import Law
from twinproof.privacy.mechanisms.targets import check_positive
from twinproof.privacy.sensitivity.bound import Norm
from twinproof.privacy.sensitivity.float_error import relative_error


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

    Changes are measured in ``norm``; ``scale`` multiplies the hidden noise of each output. The scales are those that are drawn
    at inference: noise that was drawn once and kept, or a factor between drawn and stated noise (Appendix N's psi), gives
    nothing, and a radius from stated noise would be that factor too large.
    """
    check_positive("scale of the noise on the input", input_scale)
    check_positive("scale of the noise behind the layer", hidden_scale)
    leaving = outgoing_sums(layer, shape, scale)
    scales = np.ones(len(incoming_sums(layer, shape))) if scale is None else scale
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
