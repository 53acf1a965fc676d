"""The least float for which a monotone condition holds: how every calibration ends on the safe side."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from twinproof.errors import ConfigError


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
