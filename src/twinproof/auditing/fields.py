"""Tables of fields: what a record of a run must hold, and a walk that reports everything that does not fit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from twinproof.auditing.evidence import shown
from twinproof.auditing.verification import Problem

LARGEST_WHOLE = 2**53
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)


def number(value: object) -> float | None:
    """``value`` as a finite float if it is a JSON number, else None; true and false are no numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        return None
    return float(value) if math.isfinite(value) else None


def whole(value: object) -> int | None:
    """``value`` if it is an integer that a float can hold exactly, else None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) <= LARGEST_WHOLE else None


def is_number(value: object) -> bool:
    """Any finite number."""
    return number(value) is not None


def is_positive(value: object) -> bool:
    """A finite number above 0."""
    got = number(value)
    return got is not None and got > 0


def is_not_negative(value: object) -> bool:
    """A finite number, 0 or above."""
    got = number(value)
    return got is not None and got >= 0


def is_probability(value: object) -> bool:
    """A number from 0 to 1, ends included."""
    got = number(value)
    return got is not None and 0 <= got <= 1


def is_open_probability(value: object) -> bool:
    """A number strictly between 0 and 1."""
    got = number(value)
    return got is not None and 0 < got < 1


def is_rate(value: object) -> bool:
    """A number above 0 and at most 1."""
    got = number(value)
    return got is not None and 0 < got <= 1


def is_count(value: object) -> bool:
    """An integer, 0 or above."""
    got = whole(value)
    return got is not None and got >= 0


def is_positive_count(value: object) -> bool:
    """An integer, 1 or above."""
    got = whole(value)
    return got is not None and got >= 1


def is_digest(value: object) -> bool:
    """A SHA-256 in lower-case hexadecimal."""
    return isinstance(value, str) and _HEX_DIGEST.fullmatch(value) is not None


def is_text(value: object) -> bool:
    """A string with something in it."""
    return isinstance(value, str) and bool(value)


def is_texts(value: object) -> bool:
    """A list of strings."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def is_text_map(value: object) -> bool:
    """An object whose values are strings."""
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def is_object(value: object) -> bool:
    """A JSON object."""
    return isinstance(value, dict)


def is_utc_time(value: object) -> bool:
    """An ISO 8601 time that ends in Z."""
    if not isinstance(value, str) or not value.endswith("Z") or not value.isascii():
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def or_null(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    """Accepts null as well."""
    return lambda value: value is None or accepts(value)


def exactly(wanted: object) -> Callable[[object], bool]:
    """Accepts one value of one type: 1 is not true."""
    return lambda value: type(value) is type(wanted) and value == wanted


@dataclass(frozen=True)
class Field:
    """A key, what its value must be, and the same in words; one that is ``optional`` may be missing."""

    name: str
    accepts: Callable[[object], bool]
    wanted: str
    optional: bool = False


FORMATS = (1, 2)
"""The formats that this verifier reads."""
FORMAT = Field("format", lambda value: type(value) is int and value in FORMATS, " or ".join(map(str, FORMATS)))
"""The number of the format: the same field in all files of a run."""
ORIGIN = (
    Field("device", is_text, "a description"),
    Field("versions", is_text_map, "software versions by package name"),
    Field("created", is_utc_time, "a UTC time"),
    Field("seconds", is_not_negative, "a number from 0"),
)
"""Where and when a record was made: the same in certificates.json, attacks.json and audit.json."""


def field_problems(
    file: str, record: dict[str, Any], fields: tuple[Field, ...], *, where: str = "", closed: bool = False
) -> Iterator[Problem]:
    """Every field that is missing or has a value it must not have; unknown keys too if ``closed``."""
    for field in fields:
        if field.name not in record:
            if field.optional:
                continue
            yield Problem(file, f"{where}{field.name} is missing", "nothing", field.wanted)
        elif not field.accepts(record[field.name]):
            yield Problem(file, f"{where}{field.name} has a value it cannot have", shown(record[field.name]), field.wanted)
    unknown = sorted(set(record) - {field.name for field in fields}) if closed else []
    for name in unknown:
        yield Problem(file, f"{where}there is an unknown key", shown(name), ", ".join(field.name for field in fields))
