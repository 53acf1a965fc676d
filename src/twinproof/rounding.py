"""Rounding in the safe direction: radii down, epsilons up, everywhere a person or a file sees them.

Guarantees
    ``round_down(x, d) <= x <= round_up(x, d)`` for every finite float, as floats; both are the floats nearest to a decimal of
    ``d`` digits, and the text forms read back as those floats. Proof: the decimal value is found exactly (a float is a finite
    decimal), and the float nearest to a decimal that lies at or below the float x is itself at or below x, because rounding
    to nearest is monotone and keeps x. Rounding again changes nothing: a float that is itself the nearest one to a decimal
    of ``d`` digits (0.3, say, which lies 1e-17 below three tenths) stands for that decimal.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal

RADIUS_DIGITS = 6
EPSILON_DIGITS = 6
UPWARDS = 1 + 2.0**-48
"""A factor that covers a dozen roundings of 2**-53 each: what formulas of sensitivities and noise take, with room."""

_EXACT = Context(prec=1200)


def _quantized(value: float, digits: int, rounding: str) -> Decimal:
    step = Decimal(1).scaleb(-digits)
    nearest = Decimal(value).quantize(step, rounding=ROUND_HALF_EVEN, context=_EXACT)
    if float(nearest) == value:
        return nearest
    return Decimal(value).quantize(step, rounding=rounding, context=_EXACT)


def round_down(value: float, digits: int = RADIUS_DIGITS) -> float:
    """The largest decimal with ``digits`` places that is not above ``value``; infinities stay as they are."""
    return float(_quantized(value, digits, ROUND_FLOOR)) if math.isfinite(value) else value


def round_up(value: float, digits: int = EPSILON_DIGITS) -> float:
    """The smallest decimal with ``digits`` places that is not below ``value``; infinities stay as they are."""
    return float(_quantized(value, digits, ROUND_CEILING)) if math.isfinite(value) else value


def format_down(value: float, digits: int = RADIUS_DIGITS) -> str:
    """``round_down`` as text with exactly ``digits`` places."""
    return format(_quantized(value, digits, ROUND_FLOOR), "f") if math.isfinite(value) else str(value)


def format_up(value: float, digits: int = EPSILON_DIGITS) -> str:
    """``round_up`` as text with exactly ``digits`` places."""
    return format(_quantized(value, digits, ROUND_CEILING), "f") if math.isfinite(value) else str(value)
