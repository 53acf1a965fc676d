"""``twinproof settings``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import typer

from twinproof.cli.output import Json, print_json, print_rows
from twinproof.recipes.config import full_schema
from twinproof.recipes.registry import find_recipe

_LIMITS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}


def settings(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="Show its own defaults, and only the settings that it reads.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Lists the settings of a training.

    Each with its meaning, default and range. Use these names with --set, in a TOML file for --config and in Python.

    Example: twinproof settings stobatch
    """
    schema = full_schema().model_json_schema()
    rows = list(_rows(schema, schema["$defs"]))
    rows.sort(key=lambda row: row["name"].partition(".")[0] not in ("data", "recipe", "variant"))
    if recipe is not None:
        spec = find_recipe(recipe)
        defaults = spec.plain_defaults
        own = _flat({"recipe": spec.name, **defaults})
        rows = [{**row, "default": own.get(row["name"], row["default"])} for row in rows if _reads(defaults, row["name"], own)]
    if as_json:
        print_json({"recipe": recipe, "settings": rows})
        return
    shown = [[row["name"], _text(row["default"]), row["range"], row["meaning"]] for row in rows]
    print_rows(shown, header=["setting", "default", "range", "meaning"])


def _reads(defaults: Mapping[str, Any], name: str, own: Mapping[str, Any]) -> bool:
    """Whether a recipe with these defaults reads the setting: of a regulariser, those that it has a value for."""
    section = name.partition(".")[0]
    return (
        name in own
        if section == "regulariser"
        else section not in ("noise_layer", "trainers", "interval") or section in defaults
    )


def _rows(section: Mapping[str, Any], definitions: Mapping[str, Any], prefix: str = "") -> Iterator[dict[str, Any]]:
    """One row for each setting of a JSON schema, the settings of a nested section under its name."""
    for name, field in section["properties"].items():
        kinds = [_resolved(kind, definitions) for kind in field.get("anyOf", [field])]
        nested = [kind for kind in kinds if "properties" in kind]
        if nested:
            yield from _rows(nested[0], definitions, f"{prefix}{name}.")
            continue
        yield {
            "name": f"{prefix}{name}",
            "meaning": field.get("description", ""),
            "default": "required" if name in section.get("required", ()) else field.get("default"),
            "range": " or ".join(text for kind in kinds if (text := _range(kind))),
        }


def _resolved(kind: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = kind.get("$ref")
    return kind if reference is None else definitions[reference.rpartition("/")[2]]


def _range(kind: Mapping[str, Any]) -> str:
    if "enum" in kind or "const" in kind:
        return ", ".join(map(str, kind.get("enum", [kind.get("const")])))
    limits = [f"{words} {kind[key]:g}" for key, words in _LIMITS.items() if key in kind]
    name = {"integer": "whole number", "string": "text", "boolean": "true or false", "array": "list", "object": "table"}
    plain = name.get(kind.get("type", ""), kind.get("type", ""))
    return " ".join([plain, *([" and ".join(limits)] if limits else [])]) if plain != "null" else ""


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _text(default: Any) -> str:
    return "unset" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
