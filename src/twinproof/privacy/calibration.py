"""The smallest noise multiplier whose accounted epsilon does not exceed a target."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from twinproof.errors import ConfigError
from twinproof.privacy.accounting import Event, PoissonGaussianEvent, epsilon_pld, epsilon_rdp
from twinproof.rounding import format_up, round_up

MULTIPLIER_DIGITS = 6
_SMALLEST, _LARGEST = 0.1, 1e5
# Relative width of the final bracket. Epsilon falls about as fast as the multiplier grows, so this keeps it within 0.1 %.
_WIDTH = 5e-4
_KEPT = 64  # answers that a process remembers


def _bisect(cost: Callable[[float], float], target: float, low: float, high: float, width: float) -> tuple[float, float]:
    """Shrinks (low, high), cost(low) > target >= cost(high), until high/low <= 1 + width; the safe side is ``high``."""
    while high / low > 1 + width:
        middle = math.sqrt(low * high)
        if cost(middle) <= target:
            high = middle
        else:
            low = middle
    return low, high


def _narrow(cost: Callable[[float], float], target: float, low: float, high: float) -> float:
    """The safe end of a bracket as ``_bisect`` would shrink it to ``_WIDTH``, in about half as many evaluations.

    Between close multipliers epsilon is nearly a power of them, so the answer is interpolated and the bracket closed from
    both sides around it; every third step halves, whatever the interpolation says.
    """
    side, count = 1, 0
    while high / low > 1 + _WIDTH:
        count += 1
        at_low, at_high = cost(low), cost(high)
        middle = math.sqrt(low * high)
        if count % 3 and 0 < at_high < at_low < math.inf:
            share = math.log(at_low / target) / math.log(at_low / at_high)
            guess = low * (high / low) ** share * (1 + side * _WIDTH / 3)
            middle = guess if low < guess < high else middle
        if cost(middle) <= target:
            high, side = middle, -1
        else:
            low, side = middle, 1
    return high


def calibrate_noise_multiplier(
    epsilon: float, delta: float, *, sample_rate: float, steps: int, already: Sequence[Event] = ()
) -> float:
    """The smallest multiplier (to 0.05 %) at which ``already`` and the DP-SGD steps together stay within ``epsilon``.

    Guarantees
        ``epsilon_pld([*already, steps at the returned multiplier], delta) <= epsilon``: the value returned was itself
        accounted, or lies above one that was, and epsilon never grows with noise.
    """
    return _calibrated(epsilon, delta, sample_rate, steps, tuple(already))


# A table trains many models under one budget; each calibration takes seconds.
@functools.lru_cache(maxsize=_KEPT)
def _calibrated(epsilon: float, delta: float, sample_rate: float, steps: int, already: tuple[Event, ...]) -> float:
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise ConfigError("epsilon cannot be used", where="epsilon", got=epsilon, wanted="a finite number above 0")

    def rdp_cost(multiplier: float) -> float:
        return epsilon_rdp([*already, PoissonGaussianEvent(sample_rate, multiplier, steps)], delta)

    @functools.cache
    def pld_cost(multiplier: float) -> float:
        return epsilon_pld([*already, PoissonGaussianEvent(sample_rate, multiplier, steps)], delta)

    if rdp_cost(_SMALLEST) <= epsilon:
        return _SMALLEST
    if rdp_cost(_LARGEST) <= epsilon:
        low, high = _bracket(rdp_cost, pld_cost, epsilon)
    else:
        # The Renyi bound cannot show a very small epsilon, nor one just above what is already spent; the other may.
        low, high = _SMALLEST, _LARGEST
        if (least := pld_cost(high)) > epsilon:
            raise ConfigError(
                "the target epsilon cannot be reached",
                where="epsilon",
                got=epsilon,
                wanted=f"at least {format_up(least, 4)}" + (", most of which is already spent" if already else ""),
                fix="allow a larger epsilon, or take fewer steps",
            )
    return round_up(_narrow(pld_cost, epsilon, low, high), MULTIPLIER_DIGITS)


def _bracket(rough: Callable[[float], float], cost: Callable[[float], float], target: float) -> tuple[float, float]:
    """(low, high) close around the answer, cost(high) <= target: the quick bound, which is close from above, finds it."""
    _, high = _bisect(rough, target, _SMALLEST, _LARGEST, 1e-3)
    high = high if cost(high) <= target else _bisect(cost, target, high, _LARGEST, 1e-2)[1]
    low = high / 1.1
    while low > _SMALLEST and cost(low) <= target:
        low, high = low / 1.1, low
    return max(low, _SMALLEST), high
