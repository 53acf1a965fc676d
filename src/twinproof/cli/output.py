"""Printing: tables for people on stdout, one object for machines, progress and errors on stderr."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import typer

from twinproof.errors import TwinproofError


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether the command line asks for a machine's answer; needed where an error comes before parsing ends."""
    return "--json" in arguments


def print_json(value: Any) -> None:
    """The one JSON object of a ``--json`` answer. Infinity, which JSON does not know, is written as text."""
    typer.echo(json.dumps(_finite(value), indent=2, ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return str(value) if isinstance(value, float) and value in (float("inf"), float("-inf")) else value


def print_error(error: TwinproofError, *, as_json: bool) -> None:
    """One clear message: what, where, got, wanted, fix."""
    if as_json:
        print_json({"error": error.as_dict()})
    else:
        typer.echo(f"error: {error.message()}", err=True)


def print_rows(rows: Sequence[tuple[str, str]]) -> None:
    """Name and value, aligned."""
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {value}")
