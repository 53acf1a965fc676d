"""The smallest noise multiplier whose accounted epsilon does not exceed a target."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from twinproof.errors import ConfigError
from twinproof.privacy.accounting import Event, PoissonGaussianEvent, epsilon_pld, epsilon_rdp
from twinproof.rounding import round_up

MULTIPLIER_DIGITS = 6
_SMALLEST, _LARGEST = 0.1, 1e5
# Relative width of the final bracket. Epsilon falls about as fast as the multiplier grows, so this keeps it within 0.1 %.
_WIDTH = 5e-4


def _bisect(cost: Callable[[float], float], target: float, low: float, high: float, width: float) -> tuple[float, float]:
    """Shrinks (low, high), cost(low) > target >= cost(high), until high/low <= 1 + width; the safe side is ``high``."""
    while high / low > 1 + width:
        middle = math.sqrt(low * high)
        if cost(middle) <= target:
            high = middle
        else:
            low = middle
    return low, high


def calibrate_noise_multiplier(
    epsilon: float, delta: float, *, sample_rate: float, steps: int, already: Sequence[Event] = ()
) -> float:
    """The smallest multiplier (to 0.05 %) at which ``already`` and the DP-SGD steps together stay within ``epsilon``.

    Guarantees
        ``epsilon_pld([*already, steps at the returned multiplier], delta) <= epsilon``: the value returned was itself
        accounted, or lies above one that was, and epsilon never grows with noise.
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ConfigError("epsilon cannot be used", where="epsilon", got=epsilon, wanted="a finite number above 0")

    def rdp_cost(multiplier: float) -> float:
        return epsilon_rdp([*already, PoissonGaussianEvent(sample_rate, multiplier, steps)], delta)

    def pld_cost(multiplier: float) -> float:
        return epsilon_pld([*already, PoissonGaussianEvent(sample_rate, multiplier, steps)], delta)

    if rdp_cost(_LARGEST) > epsilon:
        raise ConfigError(
            "the target epsilon cannot be reached",
            where="epsilon",
            got=epsilon,
            wanted=f"more than {epsilon_rdp(already, delta):.4g}, which is already spent"
            if already
            else f"at least {rdp_cost(_LARGEST):.4g}",
            fix="allow a larger epsilon, or take fewer steps",
        )
    if rdp_cost(_SMALLEST) <= epsilon:
        return _SMALLEST
    # The Renyi bound is quick and close from above: it brackets the answer, and the slow accountant only refines it.
    _, high = _bisect(rdp_cost, epsilon, _SMALLEST, _LARGEST, 1e-3)
    high = high if pld_cost(high) <= epsilon else _bisect(pld_cost, epsilon, high, _LARGEST, 1e-2)[1]
    low = high / 1.1
    while low > _SMALLEST and pld_cost(low) <= epsilon:
        low, high = low / 1.1, low
    _, high = _bisect(pld_cost, epsilon, max(low, _SMALLEST), high, _WIDTH)
    return round_up(high, MULTIPLIER_DIGITS)
