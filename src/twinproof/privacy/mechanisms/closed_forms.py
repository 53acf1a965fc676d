"""Rounding of sigma formulas: a formula's float never lies below its real number."""

from __future__ import annotations

import math
import sys

from twinproof.errors import ConfigError

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
