"""Numbers with few digits, rounded up: the same on machines whose float64 sums differ in the last bits."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context

_DIGITS = 10
_UPWARDS = Context(prec=_DIGITS, rounding=ROUND_CEILING)


def few_digits_above(value: float) -> float:
    """The smallest decimal of ten significant digits that is not below ``value``, as the float nearest to it.

    Guarantees
        Not below ``value``: rounding a decimal to the nearest float is monotone and keeps ``value`` itself. So a bound stays a
        bound, and an interrupted certification finds the number that it wrote down.
    """
    return float(_UPWARDS.create_decimal_from_float(value))
