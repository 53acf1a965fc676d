"""Checks of settings: every problem of a schema in one error."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from twinproof.errors import ConfigError

Settings = TypeVar("Settings", bound=BaseModel)


def parse_settings(schema: type[Settings], values: Mapping[str, Any]) -> Settings:
    """``values`` checked against ``schema``; otherwise one ``ConfigError`` that lists every key with a problem."""
    try:
        return schema.model_validate(dict(values))
    except ValidationError as error:
        raise _config_error(schema, error) from error


def _config_error(schema: type[BaseModel], error: ValidationError) -> ConfigError:
    problems = {".".join(str(part) for part in p["loc"]) or "settings": p for p in error.errors(include_url=False)}
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
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
