"""A record against the one that was computed anew: every value that differs, by its path."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from twinproof.auditing.evidence import shown
from twinproof.auditing.fields import number
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_certificates import ROUNDING_UNIT
from twinproof.auditing.verify_run_json import clopper_pearson

# Two float64 computations of one number, and of one that comes out of an incomplete beta function.
EXACT = 1e-12
SPECIAL = 1e-9
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Near:
    """A number from ``low`` to ``high``; ``value`` is the one to name."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Anything:
    """A value that is checked elsewhere: ``accepts`` it or not, ``wanted`` in words."""

    accepts: Callable[[object], bool]
    wanted: str


def exact(value: float) -> Near:
    """The same number up to the last bits."""
    slack = EXACT * max(1.0, abs(value))
    return Near(value, value - slack, value + slack)


def rounded_down(value: float) -> Near:
    """Six places, not above ``value``; one unit of room, as the last bit of ``value`` can decide between two decimals."""
    slack = EXACT * max(1.0, abs(value))
    return Near(value, value - ROUNDING_UNIT - slack, value + slack)


def rounded_up(value: float) -> Near:
    """Six places, not below ``value``."""
    slack = EXACT * max(1.0, abs(value))
    return Near(value, value - slack, value + ROUNDING_UNIT + slack)


def special(value: float) -> Near:
    """A number that special functions gave."""
    return Near(value, value * (1 - 1e-6) - 1e-300, value * (1 + 1e-6) + 1e-300)


def share(count: int, total: int) -> dict[str, Near]:
    """A share with its two-sided Clopper-Pearson interval: ``low`` rounded down and ``high`` up, never inwards."""
    low, high = clopper_pearson(count, total, CONFIDENCE)
    room = 2 * ROUNDING_UNIT + SPECIAL
    return {
        "value": exact(count / total),
        "low": Near(low, low - room, low + EXACT),
        "high": Near(high, high - EXACT, high + room),
        "confidence": exact(CONFIDENCE),
    }


def differences(got: object, wanted: object, path: str) -> Iterator[tuple[str, str, str]]:
    """Path, value and wanted value of everything in ``got`` that is not as ``wanted`` says."""
    if isinstance(wanted, dict):
        if not isinstance(got, dict):
            yield path, shown(got), "an object"
            return
        for name in sorted(set(wanted) - set(got)):
            yield f"{path}.{name}", "nothing", "a value"
        for name in sorted(set(got) - set(wanted)):
            yield f"{path}.{shown(name)}", shown(got[name]), "no such key"
        for name in wanted:
            if name in got:
                yield from differences(got[name], wanted[name], f"{path}.{name}")
    elif isinstance(wanted, list):
        if not isinstance(got, list) or len(got) != len(wanted):
            yield path, shown(got), f"a list of {len(wanted)}"
            return
        for at, (one, right) in enumerate(zip(got, wanted, strict=True)):
            yield from differences(one, right, f"{path}[{at}]")
    elif not _agrees(got, wanted):
        yield path, shown(got), _in_words(wanted)


def difference_problems(file: str, got: object, wanted: object, path: str, source: str) -> Iterator[Problem]:
    """``differences`` as problems of ``file``; ``source`` is what the values follow from."""
    for where, value, right in differences(got, wanted, path):
        yield Problem(file, f"{where} does not follow from {source}", value, right)


def _agrees(got: object, wanted: object) -> bool:
    if isinstance(wanted, Anything):
        return wanted.accepts(got)
    if isinstance(wanted, Near):
        value = number(got)
        return value is not None and math.isfinite(value) and wanted.low <= value <= wanted.high
    return type(got) is type(wanted) and got == wanted


def _in_words(wanted: object) -> str:
    if isinstance(wanted, Anything):
        return wanted.wanted
    return repr(wanted.value) if isinstance(wanted, Near) else shown(wanted)
