"""Numbers as text, rounded in the direction that promises less.

Guarantees
    A radius or an accuracy is never shown larger, and an epsilon, a delta or an alpha never smaller, than it was stored. Files
    hold decimals of six places, which binary floats only approximate: 0.3 read from a file is a float a little below 0.3. A
    float within 1e-9 of a shorter decimal is therefore that decimal; every other one is rounded by :mod:`twinproof.guarantee`.
    As two decimals of six places differ by 1e-6 or not at all, this never moves a stored number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Context, Decimal

from twinproof.evaluation.accuracy import Interval
from twinproof.guarantee import RADIUS_DIGITS, format_down, format_up

NOTHING = "–"
_SAME_DECIMAL = 1e-9
_ROUND_UP = Context(prec=3, rounding=ROUND_CEILING)


def down(value: float | None, digits: int = 3) -> str:
    """A number that is good to have (a radius), rounded down."""
    return NOTHING if value is None else _directed(value, digits, format_down)


def up(value: float | None, digits: int = 3) -> str:
    """A number that is bad to have (epsilon, the length of a change), rounded up."""
    return NOTHING if value is None else _directed(value, digits, format_up)


def file_down(value: float) -> float:
    return float(down(value, RADIUS_DIGITS))


def file_up(value: float) -> float:
    return float(up(value, RADIUS_DIGITS))


def percent_down(share: float, digits: int = 1) -> str:
    """A share of inputs that is good to have (an accuracy) in percent, rounded down."""
    return f"{down(100 * share, digits)} %"


def percent_up(share: float, digits: int = 1) -> str:
    """A share of inputs that is bad to have (abstentions) in percent, rounded up."""
    return f"{up(100 * share, digits)} %"


def percent_range(interval: Interval) -> str:
    return f"{down(100 * interval.low, 1)} – {percent_up(interval.high)}"


def radius_range(interval: Interval) -> str:
    return f"{down(interval.low)} – {up(interval.high)}"


def probability(value: float | None) -> str:
    """A probability of failure (delta, alpha) with three significant digits, rounded up."""
    if value is None:
        return NOTHING
    return _short(float(_ROUND_UP.create_decimal(repr(value)))) if math.isfinite(value) else str(value)


def factor(epsilon: float) -> str:
    """e to the power of epsilon, rounded up: the factor by which a probability may change."""
    exponent = Decimal(repr(epsilon))
    return _short(float(_ROUND_UP.create_decimal(exponent.exp()))) if exponent > 10 else format_up(math.exp(epsilon), 2)


def setting(value: object) -> str:
    """A setting as it was given; no promise depends on its last digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return NOTHING if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else _short(value)


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _directed(value: float, digits: int, rounding: Callable[[float, int], str]) -> str:
    nearest = format(value, f".{digits}f")
    return nearest if math.isclose(float(nearest), value, rel_tol=0, abs_tol=_SAME_DECIMAL) else rounding(value, digits)


def _short(value: float) -> str:
    text = format(value, ".6g")
    mantissa, letter, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if letter else text
