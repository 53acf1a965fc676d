"""A guarantee: what is promised, under which assumptions, by which theorem, with which status; and its numbers, rounded in the
safe direction: radii down, epsilons up, everywhere a person or a file sees them.

Guarantees
    ``round_down(x, d) <= x <= round_up(x, d)`` for every finite float, as floats; both are the floats nearest to a decimal of
    ``d`` digits, and the text forms read back as those floats. Proof: the decimal value is found exactly (a float is a finite
    decimal), and the float nearest to a decimal that lies at or below the float x is itself at or below x, because rounding
    to nearest is monotone and keeps x. Rounding again changes nothing: a float that is itself the nearest one to a decimal
    of ``d`` digits (0.3, say, which lies 1e-17 below three tenths) stands for that decimal.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from enum import StrEnum
from typing import Any

WEAK_EPSILON = 8.0
"""From here on a promise of privacy is called weak wherever it is printed."""
EMPTY_EPSILON = 10.0
"""From here on a promise of privacy is never shown in green, proven or not."""
_CERTAIN = 100  # an epsilon at which the bound on guesses has been 100 % for long
_EXACT = Context(prec=60)


class Status(StrEnum):
    """How far a promise may be trusted."""

    PROVEN = "proven"  # a theorem, and tests in this repository that could refute it
    PUBLISHED = "published"  # a paper's claim, not proven by us
    ASSUMED = "assumed"  # the theorem holds if an assumption does that the card names and that we could not check
    REFUTED = "refuted"  # shown false by an audit or a counter-example
    NONE = "none"  # nothing is promised


PROMISING = (Status.PROVEN, Status.ASSUMED, Status.PUBLISHED)
"""Statuses that come with numbers: what else is printed with them depends on the status."""


class Kind(StrEnum):
    """Which of the two proofs a guarantee speaks of."""

    PRIVACY = "privacy"
    ROBUSTNESS = "robustness"


@dataclass(frozen=True)
class Guarantee:
    """One promise. ``values`` holds its numbers (epsilon, delta, sigma, alpha...), already rounded in the safe direction."""

    kind: Kind
    status: Status
    promise: str
    theorem: str = ""
    assumptions: tuple[str, ...] = ()
    reason: str = ""
    values: tuple[tuple[str, float | str], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The record as plain JSON values."""
        record = asdict(self)
        record["kind"], record["status"] = str(self.kind), str(self.status)
        record["assumptions"] = list(self.assumptions)
        record["values"] = dict(self.values)
        return record


def right_guesses(epsilon: float, delta: float) -> str | None:
    """How often a guess of one record's presence can be right, in percent (``95.3 %``); None where that rounds to 100 %.

    Guarantees
        Under (epsilon, delta)-differential privacy nobody who takes presence and absence of a record for equally likely is
        right more often than (e^epsilon + delta) / (1 + e^epsilon), and the number is never below that. Proof: let p be the
        probability of "present" where it is, and q that of "absent" where it is not. The promise, in both directions, says
        p <= e^epsilon (1 - q) + delta and q <= e^epsilon (1 - p) + delta. Add both: (p + q) (1 + e^epsilon) <= 2 (e^epsilon +
        delta), and (p + q) / 2 is how often the guess is right (Kairouz, Oh and Viswanath 2015).
    """
    if not epsilon < _CERTAIN:
        return None
    factor = _EXACT.exp(Decimal(epsilon))
    share = _EXACT.divide(_EXACT.add(factor, Decimal(delta)), _EXACT.add(factor, Decimal(1)))
    for step in ("0.1", "0.01"):
        percent = _EXACT.multiply(share, Decimal(100)).quantize(Decimal(step), rounding=ROUND_CEILING)
        if percent < 100:
            return f"{percent} %"
    return None


def guessing_words(epsilon: float, delta: float) -> str:
    """What a promise of privacy means for one record, in plain words that depend on epsilon."""
    percent = right_guesses(epsilon, delta)
    if percent is None:
        meaning = "The bound on how often somebody can tell whether a given record was used rounds to 100 %: it says nothing."
    else:
        meaning = (
            "Somebody who would guess right half of the time whether a given record was used is right at most "
            f"{percent} of the time after seeing the model."
        )
    return f"{meaning} {WEAK_WORDS}" if epsilon >= WEAK_EPSILON else meaning


WEAK_WORDS = f"This is weak protection: epsilon is {WEAK_EPSILON:g} or more."
"""The warning that belongs to every such promise."""


RADIUS_DIGITS = 6
EPSILON_DIGITS = 6
UPWARDS = 1 + 2.0**-48
"""A factor that covers a dozen roundings of 2**-53 each: what formulas of sensitivities and noise take, with room."""

_DECIMALS = Context(prec=1200)


def _quantized(value: float, digits: int, rounding: str) -> Decimal:
    step = Decimal(1).scaleb(-digits)
    nearest = Decimal(value).quantize(step, rounding=ROUND_HALF_EVEN, context=_DECIMALS)
    if float(nearest) == value:
        return nearest
    return Decimal(value).quantize(step, rounding=rounding, context=_DECIMALS)


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
