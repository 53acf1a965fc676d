"""Gradients in a weight W that a record also uses by its absolute values.

For y = Wx + b and s = |W| r the gradient in W is that of y plus sign(W), entry by entry, times what the gradient in |W| is: the
errors at s times r. As in autograd, sign(0) is 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from twinproof.layers.interval import DifferenceMagnitude
from twinproof.layers.noise_placement import FirstLayer
from twinproof.training.per_example.fast import Call, by_record
from twinproof.training.per_example.gradients import LinearFactors, PerExampleGradient, rounded_up

_EPS = 2.0**-52  # as in ``gradients``: twice the unit roundoff of float64
_SPARE_TERMS = 8


@dataclass(frozen=True, eq=False)
class SignedFactors(PerExampleGradient):
    """Gradients ``plain`` + ``signs`` * ``spread`` of a weight (out, in): G1 + S * G2, both of them as factors.

    Guarantees
        ``squared_norms`` is never below the exact squared norm of what ``weighted_sum`` adds up, for factors in float32 or
        lower precision. Proof: it is |G1|^2 + |S * G2|^2 + 2 <G1, S * G2>, and |S * G2| <= |G2|, since entries of S are -1, 0
        or 1. ``LinearFactors`` gives |G1|^2 and |G2|^2 never below the truth. With errors and inputs e_t, x_t of G1 and f_s,
        r_s of G2, the third term is twice the sum over (t, s, i) of x_ti r_si [sum over o of e_to f_so S_oi]. Products of two
        float32 are exact in float64, so that its float64 value errs by at most (out + T_1 T_2 in + 1) u, u = 2**-53, times
        the sum of all magnitudes, which is at most L1 L2 by Cauchy and Schwarz: L1 is the sum over t of |e_t||x_t|, L2 that
        over s of |f_s||r_s|. Since 4 L1 L2 <= (L1 + L2)^2, what is added, more than (out + T_1 T_2 in) 2u (L1 + L2)^2, is
        four times that error; the rest covers the last additions, whose terms do not exceed (L1 + L2)^2, and the rounding of
        L1 and L2.
    """

    plain: LinearFactors
    spread: LinearFactors
    signs: Tensor

    def squared_norms(self) -> Tensor:
        """See :class:`PerExampleGradient`."""
        errors, inputs = self._products()
        moved = errors.flatten(0, 2) @ self.signs.to(torch.float64)
        cross = (moved.view(inputs.shape) * inputs).sum((1, 2, 3))
        lengths = _length(self.plain) + _length(self.spread)
        total = self.plain.squared_norms() + self.spread.squared_norms() + 2 * cross
        terms = errors.shape[3] + math.prod(inputs.shape[1:])
        return rounded_up(total.clamp(min=0) + (terms + _SPARE_TERMS) * _EPS * lengths.square(), 1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """See :class:`PerExampleGradient`."""
        return self.plain.weighted_sum(weights) + self.signs * self.spread.weighted_sum(weights)

    def instantiate(self) -> Tensor:
        """See :class:`PerExampleGradient`."""
        return self.plain.instantiate().addcmul_(self.signs, self.spread.instantiate())

    def _products(self) -> tuple[Tensor, Tensor]:
        """e_t * f_s and x_t * r_s for all pairs: (m, T_1, T_2, out) and (m, T_1, T_2, in), exact for float32."""

        def pairs(first: Tensor, second: Tensor) -> Tensor:
            return first.to(torch.float64).unsqueeze(2) * second.to(torch.float64).unsqueeze(1)

        return pairs(self.plain.errors, self.spread.errors), pairs(self.plain.inputs, self.spread.inputs)


def _length(factors: LinearFactors) -> Tensor:
    """The sum over t of |error_t||input_t|: (m,) float64, at least the norm of what they stand for."""
    sizes = [torch.linalg.vector_norm(values, dim=2, dtype=torch.float64) for values in (factors.errors, factors.inputs)]
    products: Tensor = sizes[0] * sizes[1]
    return products.sum(1)


def signs_of(layer: FirstLayer) -> Tensor:
    """The derivative of |W| in W, entry by entry."""
    return layer.weight.detach().sign()


def difference_gradient(layer: nn.Linear, calls: Sequence[Call], records: int) -> Tensor:
    """The gradient in W of all |W_y - W_j| r, from one radius for each row: (m, out, in).

    Row k of W stands in the entries (k, j) and, with the other sign, in (j, k); the sign of W_k - W_j changes with it, so that
    both have the slope sign(W_k - W_j) r in W_k, and their errors add up.
    """
    weight = layer.weight.detach()
    signs = (weight.unsqueeze(1) - weight.unsqueeze(0)).sign()  # (k, j, in)
    total = weight.new_zeros(records, *weight.shape)
    for call in calls:
        both = call.errors + call.errors.transpose(1, 2)
        slopes = torch.bmm(both.transpose(0, 1), signs).transpose(0, 1) * call.inputs.unsqueeze(1)
        total += by_record(slopes, records, *weight.shape).sum(1)
    return total


def by_use(calls: Sequence[Call]) -> tuple[list[Call], list[Call], list[Call]]:
    """The calls without a magnitude, those of |W|, and those of the differences of its rows."""
    plain = [call for call in calls if call.magnitude is None]
    differences = [call for call in calls if isinstance(call.magnitude, DifferenceMagnitude)]
    spreads = [call for call in calls if call.magnitude is not None and not isinstance(call.magnitude, DifferenceMagnitude)]
    return plain, spreads, differences
