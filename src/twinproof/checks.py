"""Checks of values and settings. A value's name is its keyword: ``checks.positive(sigma=0)`` says "sigma cannot be used"."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from twinproof.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel

Settings = TypeVar("Settings", bound="BaseModel")
_POSITIVE = "a finite number above 0"


def positive(*, where: str = "", fix: str = "", **values: float) -> None:
    """Finite numbers above 0."""
    _check(_is_positive, _POSITIVE, where, fix, values)


def positive_value(name: str, value: float) -> None:
    """``positive`` for a name of several words."""
    _check(_is_positive, _POSITIVE, "", "", {name: value})


def not_negative(*, where: str = "", fix: str = "", **values: float) -> None:
    """Finite numbers, 0 or above."""
    _check(lambda value: 0 <= value < math.inf, "a finite number, 0 or above", where, fix, values)


def between(low: float, high: float, /, *, where: str = "", fix: str = "", **values: float) -> None:
    """Numbers from ``low`` to ``high``, both included."""
    _check(lambda value: low <= value <= high, f"a number from {low:g} to {high:g}", where, fix, values)


def inside(low: float, high: float, /, *, where: str = "", fix: str = "", **values: float) -> None:
    """Numbers between ``low`` and ``high``, both excluded."""
    _check(lambda value: low < value < high, f"a number above {low:g} and below {high:g}", where, fix, values)


def whole(low: int, high: float = math.inf, /, *, where: str = "", fix: str = "", **values: float) -> None:
    """Whole numbers from ``low`` to ``high``."""
    wanted = f"a whole number from {low:,} to {high:,}" if high < math.inf else f"a whole number, at least {low}"
    _check(lambda value: low <= value <= high and value == int(value), wanted, where, fix, values)


def one_of(options: Collection[str], /, *, where: str = "", fix: str = "", **values: str) -> None:
    """Words of a closed list."""
    _check(lambda value: value in options, f"one of {', '.join(options)}", where, fix, values)


def _is_positive(value: Any) -> bool:
    return bool(0 < value < math.inf)


def _check(holds: Callable[[Any], bool], wanted: str, where: str, fix: str, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        try:
            fits = bool(holds(value))
        except (TypeError, ValueError, ArithmeticError):
            fits = False
        if not fits:
            # Python refuses to print integers of thousands of digits.
            got = f"an integer of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 1000 else value
            raise ConfigError(f"{name} cannot be used", where=where or name, got=got, wanted=wanted, fix=fix)


def parse_settings(schema: type[Settings], values: Mapping[str, Any]) -> Settings:
    """``values`` checked against ``schema``; otherwise one ``ConfigError`` that lists every key with a problem."""
    from pydantic import ValidationError  # the calculators need none of it

    try:
        return schema.model_validate(dict(values))
    except ValidationError as error:
        raise _config_error(schema, error.errors(include_url=False)) from error


def _config_error(schema: type[BaseModel], errors: Iterable[Mapping[str, Any]]) -> ConfigError:
    problems = {".".join(str(part) for part in p["loc"]) or "settings": p for p in errors}
    got = "; ".join(f"{key} = {'nothing' if p['type'] == 'missing' else repr(p['input'])}" for key, p in problems.items())
    wanted = "; ".join(f"{key}: {_wanted(schema, key, p['type'], p['msg'])}" for key, p in problems.items())
    what = "a setting cannot be used" if len(problems) == 1 else f"{len(problems)} settings cannot be used"
    return ConfigError(what, where=", ".join(problems), got=got, wanted=wanted, fix="correct the keys named above")


def _wanted(schema: type[BaseModel], key: str, kind: str, message: str) -> str:
    if kind != "extra_forbidden":
        return message.removeprefix("Value error, ")
    section, name = _section_around(schema, key), key.split(".")[-1]
    renamed: Mapping[str, str] = getattr(section, "RENAMED", {})
    if name in renamed:
        return f"its new name: {renamed[name]}"
    fields = list(section.model_fields)
    near = difflib.get_close_matches(name, fields, n=1)
    return f"a known key (did you mean {near[0]!r}?)" if near else f"one of {', '.join(fields)}"


def _section_around(schema: type[BaseModel], key: str) -> type[BaseModel]:
    """The section that ``key`` stands in."""
    for part in key.split(".")[:-1]:
        annotation = schema.model_fields[part].annotation if part in schema.model_fields else None
        # A section may be optional: ``Section | None`` holds the section among its arguments.
        sections = [inner for inner in (annotation, *get_args(annotation)) if _is_section(inner)]
        if not sections:
            break
        schema = sections[0]
    return schema


def _is_section(annotation: Any) -> bool:
    return hasattr(annotation, "model_fields")
