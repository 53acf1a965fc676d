"""How far float64 arithmetic can be from the truth, in the forms in which the bounds of this package need it.

The model is the usual one (Higham, Accuracy and Stability of Numerical Algorithms, chapters 2 and 3): each operation is right
to a relative error of 2^-53, sums may be taken in any order and with fused operations. Numbers are scaled beforehand so that
the largest entry of a matrix is near 1: what underflows is far below all other errors.
"""

from __future__ import annotations

UNIT = 2.0**-53
# Operations besides the sum itself: scalings, square roots, products, the rounding of the bound that is being computed.
_AROUND_A_SUM = 64


def relative_error(terms: int) -> float:
    """Bound on the relative error of a sum of ``terms`` numbers of one sign, each with a few roundings of its own.

    For numbers of both signs it is the error relative to the sum of magnitudes. Twice the classical constant, so that
    factors such as (1 + error) may be multiplied and divided without counting their own roundings.
    """
    return 2 * (terms + _AROUND_A_SUM) * UNIT
