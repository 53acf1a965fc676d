"""How far, in the norm of a certificate, an attack of some size in some norm can go: what its radius must cover."""

from __future__ import annotations

import math
from fractions import Fraction

from twinproof.errors import ConfigError
from twinproof.rounding import RADIUS_DIGITS

# Twice the inverse of each norm's order: the longest change of one norm, seen in another, differs by sqrt(d) for each step.
_STEPS = {"l1": 2, "l2": 1, "linf": 0}


def reach(attack_norm: str, size: float, certificate_norm: str, dimension: int) -> float:
    """The largest length in ``certificate_norm`` of a change of ``size`` in ``attack_norm``, rounded up as radii are down.

    The largest ||x||_p over ||x||_q = 1 in d dimensions is d^(1/p - 1/q), and 1 where that is negative:

    | certified in | l1 attack | l2 attack | linf attack |
    | --- | --- | --- | --- |
    | l1 | 1 | sqrt(d) | d |
    | l2 | 1 | 1 | sqrt(d) |
    | linf | 1 | 1 | 1 |

    All of them are attained (one coordinate, or all of them equal), so that nothing smaller would do: an l2 radius of r says
    nothing about all linf changes of size r, most of which are longer than r. ``dimension`` is that of the inputs, wherever
    the noise is added.

    Guarantees
        Never below the true value: the size is the decimal that it prints as, and the root is taken in integers, rounded up.
    """
    for name, norm in (("attack_norm", attack_norm), ("certificate_norm", certificate_norm)):
        if norm not in _STEPS:
            raise ConfigError("unknown norm", where=name, got=norm, wanted=", ".join(_STEPS))
    factor = dimension ** max(0, _STEPS[certificate_norm] - _STEPS[attack_norm])
    square = Fraction(repr(float(size))) ** 2 * factor * 100**RADIUS_DIGITS
    whole = math.ceil(square)
    root = math.isqrt(whole - 1) + 1 if whole > 0 else 0
    return float(Fraction(root, 10**RADIUS_DIGITS))
