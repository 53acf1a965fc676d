"""What all mechanisms have in common: a privacy profile, a search for the least noise, rounding on the safe side."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Protocol

from twinproof import checks
from twinproof.errors import ConfigError
from twinproof.privacy.accounting import check_delta

# Covers a dozen roundings of 2**-53 each: what the formulas here take, with room.
UPWARDS = 1 + 2.0**-48


class Mechanism(Protocol):
    """Noise of a known law on a query of a known sensitivity.

    Guarantees
        ``delta_at`` and ``epsilon_at`` never under-state: the mechanism is (epsilon, ``delta_at(epsilon)``)-private and
        (``epsilon_at(delta)``, delta)-private, and by at most rounding nothing smaller is true for the worst query of that
        sensitivity. ``delta_at(epsilon_at(delta)) <= delta``.
    """

    @property
    def theorem(self) -> str:
        """Why the noise is private."""

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise, before redistribution."""

    @property
    def sensitivity(self) -> float:
        """The farthest that neighbours can move the query, in the norm that belongs to the noise."""

    def delta_at(self, epsilon: float) -> float:
        """The smallest delta at that epsilon (0 or above), rounded up."""

    def epsilon_at(self, delta: float) -> float:
        """The smallest epsilon at that delta, rounded up."""


def least_float(holds: Callable[[float], bool], start: float, name: str) -> float:
    """The least float at which ``holds`` is true, for a condition that stays true from some value on; ``name`` is for errors.

    ``holds(result)`` was evaluated and true, whatever ``holds`` is: rounding in it can cost tightness, never truth. For a
    monotone condition the float below the result fails, unless the result is the smallest normal float.
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


def least_epsilon(delta_at: Callable[[float], float], delta: float) -> float:
    """The least float epsilon, 0 included, whose delta does not exceed ``delta``."""
    if delta_at(0.0) <= delta:
        return 0.0
    return least_float(lambda epsilon: delta_at(epsilon) <= delta, 1.0, "epsilon")


def rounded_up_sigma(sigma: float) -> float:
    """A formula's value, not below it despite rounding; refuses what floats cannot hold with full precision."""
    result = sigma * UPWARDS
    if not sys.float_info.min <= result < math.inf:
        raise ConfigError(
            "the noise lies outside the range of floats",
            where="sigma",
            got=result,
            wanted="a normal float64",
            fix="measure the query in another unit, so that its sensitivity is near 1",
        )
    return result


def check_positive(name: str, value: float) -> None:
    """``checks.positive`` for a name of several words."""
    if not 0 < value < math.inf:
        raise ConfigError(f"{name} cannot be used", where=name, got=value, wanted="a finite number above 0")


def check_target(epsilon: float, delta: float, sensitivity: float) -> None:
    """Refuses a target that a Gaussian mechanism cannot be calibrated for: every noise has some delta above 0."""
    check_delta(delta)
    checks.positive(epsilon=epsilon, sensitivity=sensitivity)
