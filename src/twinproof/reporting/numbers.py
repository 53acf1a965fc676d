"""Numbers as a person reads them, always rounded in the direction that promises less.

Guarantees
    A radius or an accuracy is never shown larger, and an epsilon, a delta or an alpha never smaller, than it was stored. Files
    hold decimals of six places, which binary floats only approximate: 0.3 read from a file is a float a little below 0.3. A
    float within 1e-9 of a shorter decimal is therefore that decimal; every other one is rounded by :mod:`twinproof.rounding`.
    As two decimals of six places differ by 1e-6 or not at all, this never moves a stored number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Context, Decimal

from twinproof.evaluation.accuracy import Interval
from twinproof.rounding import EPSILON_DIGITS, RADIUS_DIGITS, format_down, format_up

_SAME_DECIMAL = 1e-9
_MISSING = "–"


def radius_text(value: float | None, digits: int = 3) -> str:
    """A radius, rounded down."""
    return _MISSING if value is None else _directed(value, digits, format_down)


def epsilon_text(value: float | None, digits: int = 3) -> str:
    """An epsilon, rounded up."""
    return _MISSING if value is None else _directed(value, digits, format_up)


def length_text(value: float, digits: int = 3) -> str:
    """The length of a change that an attack made, rounded up."""
    return _directed(value, digits, format_up)


def points_text(share: float) -> str:
    """A difference of two shares in percentage points, with its sign; no promise hangs on its last digit."""
    return f"{100 * share:+.1f}"


def radius_number(value: float) -> float:
    """A radius for a file: six places, rounded down."""
    return float(radius_text(value, RADIUS_DIGITS))


def epsilon_number(value: float) -> float:
    """An epsilon for a file: six places, rounded up."""
    return float(epsilon_text(value, EPSILON_DIGITS))


def share_text(share: float, digits: int = 1) -> str:
    """A share of inputs that is good to have (an accuracy) in percent, rounded down."""
    return f"{_directed(100 * share, digits, format_down)} %"


def share_text_up(share: float, digits: int = 1) -> str:
    """A share of inputs that is bad to have (abstentions), or the upper end of an interval, in percent, rounded up."""
    return f"{_directed(100 * share, digits, format_up)} %"


def share_range(interval: Interval) -> str:
    """The ends of an interval of shares: low rounded down, high rounded up."""
    low = share_text(interval.low).removesuffix(" %")
    return f"{low} – {share_text_up(interval.high)}"


def radius_range(interval: Interval) -> str:
    """The ends of an interval of radii: low rounded down, high rounded up."""
    return f"{radius_text(interval.low)} – {_directed(interval.high, 3, format_up)}"


def probability_text(value: float | None, digits: int = 3) -> str:
    """A probability of failure (delta, alpha) with a few significant digits, rounded up."""
    if value is None:
        return _MISSING
    if not math.isfinite(value):
        return str(value)
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(value))
    return _short(float(rounded))


def factor_text(epsilon: float) -> str:
    """e to the power of epsilon, rounded up: by how much a probability may change."""
    exponent = Decimal(repr(epsilon))
    if exponent > 10:
        return _short(float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(exponent.exp())))
    return format_up(math.exp(epsilon), 2)


def setting_text(value: object) -> str:
    """A setting as it was given: no promise hangs on its last digits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return _MISSING if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else _short(value)


def duration_text(seconds: float | None) -> str:
    """A time span in the unit that suits it."""
    if seconds is None:
        return _MISSING
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
