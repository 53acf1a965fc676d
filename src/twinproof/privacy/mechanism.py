"""What all mechanisms have in common: a privacy profile, checked targets, rounding on the safe side."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import ClassVar, Protocol

from twinproof.errors import ConfigError
from twinproof.privacy.accounting import check_delta


def least_float(holds: Callable[[float], bool], start: float, name: str) -> float:
    """The least float at which ``holds`` is true, for a condition that stays true from some value on; ``name`` is for errors.

    Guarantees
        ``holds(result)`` was evaluated and true, whatever ``holds`` is: a wobble of its rounding can cost tightness, never
        truth. For a monotone condition the float below the result fails, unless the result is the smallest normal float.
    """
    low = high = start
    while not holds(high):
        low, high = high, high * 2
        if math.isinf(high):
            raise ConfigError(
                "no finite value keeps this promise", where=name, got="infinity", wanted="a target that floats can express"
            )
    while holds(low):
        low, high = low / 2, low
        if low < sys.float_info.min:
            return high
    while low < (middle := low + (high - low) / 2) < high:
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# Covers a dozen roundings of 2**-53 each: what the formulas here take, with room.
UPWARDS = 1 + 2.0**-48


def rounded_up_sigma(sigma: float) -> float:
    """A formula's value, not below it despite rounding; refuses what floats cannot hold with full precision."""
    result = sigma * UPWARDS
    if not (sys.float_info.min <= result and math.isfinite(result)):
        raise ConfigError(
            "the noise lies outside the range of floats",
            where="sigma",
            got=result,
            wanted="a normal float64",
            fix="measure the query in another unit, so that its sensitivity is near 1",
        )
    return result


def check_positive(name: str, value: float) -> None:
    """Refuses what is not a finite number above 0, naming it."""
    if not (value > 0 and math.isfinite(value)):
        raise ConfigError(f"the {name} cannot be used", where=name, got=value, wanted="a finite number above 0")


def check_profile_epsilon(epsilon: float) -> None:
    """Refuses an epsilon at which no profile is defined; 0 is one: the profile there is the total variation."""
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise ConfigError("the epsilon cannot be used", where="epsilon", got=epsilon, wanted="a finite number, 0 or above")


def check_target(epsilon: float, delta: float, sensitivity: float) -> None:
    """Refuses a target that a Gaussian mechanism cannot be calibrated for: every noise has some delta above 0."""
    check_delta(delta)
    check_positive("epsilon", epsilon)
    check_positive("sensitivity", sensitivity)


class Mechanism(Protocol):
    """Noise of a known law on a query of a known sensitivity.

    Guarantees
        ``delta_at`` and ``epsilon_at`` never under-state: the mechanism is (epsilon, ``delta_at(epsilon)``)-private and
        (``epsilon_at(delta)``, delta)-private, and by at most rounding nothing smaller is true for the worst query of that
        sensitivity. ``delta_at(epsilon_at(delta)) <= delta``.
    """

    theorem: ClassVar[str]

    @property
    def sensitivity(self) -> float:
        """The farthest that neighbours can move the query, in the norm that belongs to the noise."""

    def delta_at(self, epsilon: float) -> float:
        """The smallest delta at that epsilon (0 or above), rounded up."""

    def epsilon_at(self, delta: float) -> float:
        """The smallest epsilon at that delta, rounded up."""


def least_epsilon(delta_at: Callable[[float], float], delta: float) -> float:
    """The least float epsilon, 0 included, whose delta does not exceed ``delta``: a profile read the other way round."""
    if delta_at(0.0) <= delta:
        return 0.0
    return least_float(lambda epsilon: delta_at(epsilon) <= delta, 1.0, "epsilon")
