"""Verified testing (Phan et al. 2019, Algorithm 1, lines 18-23): is an answer robust at a size, and up to which size."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

from twinproof.certification.bounds.bound import RobustnessBound
from twinproof.errors import ConfigError
from twinproof.privacy.mechanisms.float_search import least_float
from twinproof.privacy.mechanisms.targets import check_positive


def is_robust(
    size: float, low: float, high: float, sigma: float, operator_norm: float, slack: float, bound: RobustnessBound
) -> bool:
    """Whether no change smaller than ``size`` can change the answer: size * operator_norm + slack <= sigma * reach(low, high).

    ``sigma`` is the noise's deviation in units of the whitened layer, ``operator_norm`` how far a change of size 1 moves that
    layer, ``slack`` what rounding can move it besides.

    Guarantees
        True only if ``bound`` proves it. The reach is the bound's own, rounded down, at the delta that reaches farthest; floats
        are fractions, so that the comparison itself is exact. Hence monotone: the reach does not depend on the size and the
        left side grows with it, so that an answer that is robust at a size is robust at every smaller one.
    """
    _check(size, sigma, operator_norm, slack)
    return _covers(size, float(bound.reach(low, high)), sigma, operator_norm, slack)


def largest_size(low: float, high: float, sigma: float, operator_norm: float, slack: float, bound: RobustnessBound) -> float:
    """mu_max: the largest float size at which ``is_robust`` is true; 0 where none above 0 is.

    Guarantees
        ``is_robust(result)``, and not at the next float, by the monotone search of ``least_float`` on the exact condition.
        Sizes below the smallest normal float count as 0. Infinity where the bound allows every shift.
    """
    _check(0.0, sigma, operator_norm, slack)
    reach = float(bound.reach(low, high))

    def fails(size: float) -> bool:
        return not _covers(size, reach, sigma, operator_norm, slack)

    if math.isinf(reach):
        return math.inf
    if fails(sys.float_info.min):
        return 0.0
    first_failure = least_float(fails, max(sigma * reach / operator_norm, 2 * sys.float_info.min), "size")
    return math.nextafter(first_failure, 0.0)


def _covers(size: float, reach: float, sigma: float, operator_norm: float, slack: float) -> bool:
    if math.isinf(reach):
        return True
    moved = Fraction(size) * Fraction(operator_norm) + Fraction(slack)
    # An abstention is robust at no size, not even one that rounding alone would not notice.
    return reach > 0 and moved <= Fraction(sigma) * Fraction(reach)


def _check(size: float, sigma: float, operator_norm: float, slack: float) -> None:
    check_positive("sigma", sigma)
    check_positive("operator norm", operator_norm)
    for name, value in (("size", size), ("slack", slack)):
        if not (value >= 0 and math.isfinite(value)):
            raise ConfigError(f"the {name} cannot be used", where=name, got=value, wanted="a finite number, 0 or above")
