"""The Gaussian mechanism calibrated by its exact privacy profile (Balle and Wang, ICML 2018)."""

from __future__ import annotations

import math

from twinproof.errors import ConfigError
from twinproof.privacy.accounting import check_delta


def gaussian_delta(epsilon: float, sigma: float, sensitivity: float = 1.0) -> float:
    """The smallest delta at which N(0, sigma^2) noise on a query of that l2 sensitivity is (epsilon, delta)-private.

    The second term is evaluated as exp(epsilon + log Phi): e**epsilon alone overflows, and its product loses all digits.
    It is at most 1 (epsilon <= (half + shift)^2 / 2); at a huge epsilon rounding alone would make it overflow.
    """
    from scipy.special import log_ndtr, ndtr

    half, shift = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    return max(0.0, float(ndtr(half - shift)) - math.exp(min(0.0, epsilon + float(log_ndtr(-half - shift)))))


def analytic_gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest standard deviation that is (epsilon, delta)-private at this l2 sensitivity.

    Guarantees
        ``gaussian_delta(epsilon, result, sensitivity) <= delta``. The profile is necessary and sufficient, so nothing
        smaller than the result (up to 1e-12 of it) is private. Rounding in the profile itself can let the exact delta pass
        the asked one by 1e-8 of it, for epsilon >= 1e-4. Tests: the reference table, exact arithmetic, a smaller sigma fails.
    """
    check_delta(delta)
    for name, value in (("epsilon", epsilon), ("sensitivity", sensitivity)):
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"the {name} cannot be used", where=name, got=value, wanted="a finite number above 0")
    low = high = 1.0
    while gaussian_delta(epsilon, high) > delta:
        low, high = high, high * 2
    while gaussian_delta(epsilon, low) <= delta:
        low, high = low / 2, low
    while high / low > 1 + 1e-13:
        middle = math.sqrt(low * high)
        if not low < middle < high:
            break
        low, high = (low, middle) if gaussian_delta(epsilon, middle) <= delta else (middle, high)
    return high * sensitivity
