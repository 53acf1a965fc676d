"""Mutations of a run's files, each of which must end in problems and never in an error."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from synthetic_run import bind
from twinproof_verify import verify

SNIPPETS = (
    b"NaN",
    b"-1",
    b"1e999",
    b"9" * 5000,
    b"null",
    b'"\\ud800"',
    b"\xff\xfe",
    b"\x00",
    b"[",
    b"{",
    b"\n",
    b",",
    b"true",
    b"",
)
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    0.5,
    1e308,
    1e200,
    5e-324,
    10**400,
    2**53,
    "",
    "\ud800",
    "x" * 500,
    [],
    [[]],
    [None],
    {},
    {"a": 1},
    -0.0,
)


def mutated(content: bytes, draws: random.Random) -> bytes:
    at = draws.randrange(len(content) + 1)
    choice = draws.randrange(5)
    if choice == 0:
        return content[:at] + bytes([draws.randrange(256)]) + content[at + 1 :]
    if choice == 1:
        return content[:at] + draws.choice(SNIPPETS) + content[at + draws.randrange(8) :]
    if choice == 2:
        return content[:at]
    if choice == 3:
        return content[:at] + content[at + draws.randrange(1, 40) :]
    end = min(len(content), at + draws.randrange(1, 80))
    return content[:at] + content[at:end] * 2 + content[end:]


def mutate(root: Path, name: str, mutations: int) -> None:
    """Verifies the run with ``name`` mutated in many ways; a changed file never has the digest that is bound."""
    draws = random.Random(name)
    original = (root / name).read_bytes()
    quiet = 0
    for _ in range(mutations):
        broken = mutated(original, draws)
        (root / name).write_bytes(broken)
        result = verify(root)
        json.dumps(result.as_dict(), allow_nan=False).encode()
        quiet += name != "run.json" and broken != original and "digests" in {c.name for c in result.checks if c.passed}
    assert quiet == 0


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield (*path, key)
        yield from places(item, (*path, key))


def replace_values(root: Path, name: str, spots: list[tuple[Any, ...]], *, each: int, passes: bool = True) -> None:
    """Verifies the run with each of ``spots`` of a JSON file taken by ``each`` of the hostile values, digests put right."""
    original, draws = json.loads((root / name).read_text()), random.Random(name)
    for path in spots:
        for value in draws.sample(HOSTILE, each):
            record = json.loads(json.dumps(original))
            at = record
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value
            (root / name).write_text(json.dumps(record).replace("1e+308", "1e999"))
            if name != "run.json":
                bind(root)
            result = verify(root)
            json.dumps(result.as_dict(), allow_nan=False)
            assert passes or record == original or not result.ok, path
