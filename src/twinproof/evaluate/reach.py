"""How long, in l2, an attack of some size in some norm can be: what a certificate must cover to speak about it."""

from __future__ import annotations

import math
from fractions import Fraction

from twinproof.rounding import RADIUS_DIGITS


def l2_reach(norm: str, size: float, dimension: int) -> float:
    """The largest l2 length of a change of ``size`` in ``norm``, rounded up to the digits of a radius.

    For x in d dimensions ||x||_2 <= ||x||_1 and ||x||_2 <= sqrt(d) ||x||_inf, and both are attained. So an l2 radius covers
    every l1 change of the same size, and every linf change of size radius / sqrt(d). The other way round is not allowed: an
    l2 radius of r says nothing about all linf changes of size r, most of which are longer than r.

    Guarantees
        Never below the true value: the root is taken in integers and rounded up.
    """
    factor = dimension if norm == "linf" else 1
    square = Fraction(repr(float(size))) ** 2 * factor * 100**RADIUS_DIGITS
    whole = math.ceil(square)
    root = math.isqrt(whole - 1) + 1 if whole > 0 else 0
    return float(Fraction(root, 10**RADIUS_DIGITS))
