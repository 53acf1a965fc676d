"""attacks.safetensors: every attacked input can be stored, and lies within the size of its original.

The originals are in no file of a run. Given the test set, distances are measured from them, in integers. Without it, what the
run says is held against itself: two attacked versions of one input are no further apart than their lengths together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinproof.auditing.evidence import shown
from twinproof.auditing.verification import Problem
from twinproof.auditing.verify_attack_lines import FLOAT_SLACK, AttackTable
from twinproof.auditing.verify_attack_settings import Entry, entries_of
from twinproof.auditing.verify_certificates import ROUNDING_UNIT
from twinproof.auditing.verify_originals import Originals

FILE = "attacks.safetensors"
_KINDS = {"U8": "<u1", "U16": "<u2"}
# Rows measured together: what an int64 copy of wide inputs may take.
_ROWS = 512
_LARGEST_BUDGET = 2**62

Tensors = dict[str, NDArray[Any]]


def read_attacked_inputs(content: bytes, settings: dict[str, Any]) -> tuple[Tensors, list[Problem]]:
    """The tensors that sound settings ask for, as rows of coordinates, and what is wrong with the others."""
    from safetensors import SafetensorError, deserialize

    try:
        found = dict(deserialize(content))  # type: ignore[no-untyped-call]  # raw: no framework, no copy into one
    except SafetensorError as error:
        return {}, [Problem(FILE, "the attacked inputs cannot be loaded", shown(str(error)), "a safetensors file")]
    names = [entry.name for entry in entries_of(settings)]
    problems = [
        Problem(FILE, f"there is no tensor {shown(name)}", "nothing", "one for each entry")
        for name in names
        if name not in found
    ]
    problems += [
        Problem(FILE, "a tensor belongs to no attack", shown(name), "an entry of attacks.csv")
        for name in sorted(set(found) - set(names))
    ]
    tensors: Tensors = {}
    for name in names:
        if name not in found:
            continue
        rows = _rows_of(found[name], settings)
        if isinstance(rows, str):
            wanted = f"U8 or U16, {settings['inputs']} inputs of {settings['dimension']} coordinates"
            problems.append(Problem(FILE, f"{name}: these are no inputs", rows, wanted))
        elif int(rows.max(initial=0)) > settings["levels"]:
            problems.append(
                Problem(FILE, f"{name}: an input lies outside the range", str(int(rows.max())), f"0..{settings['levels']}")
            )
        else:
            tensors[name] = rows
    return tensors, problems


def _rows_of(tensor: dict[str, Any], settings: dict[str, Any]) -> NDArray[Any] | str:
    """The tensor with one row for each input, or what it is instead."""
    shape, kind = [int(size) for size in tensor["shape"]], str(tensor["dtype"])
    fits = shape[:1] == [settings["inputs"]] and math.prod(shape[1:]) == settings["dimension"]
    if kind not in _KINDS or not fits:
        return f"{shown(kind)} {shown(shape)}"
    return np.frombuffer(tensor["data"], dtype=_KINDS[kind]).reshape(settings["inputs"], settings["dimension"])


def budget(norm: str, size: float, levels: int) -> int:
    """The most levels that may be moved (l2: the most squares of levels), with the size as the decimal that was written."""
    in_levels = Fraction(repr(size)) * levels
    return min(_LARGEST_BUDGET, math.floor(in_levels**2 if norm == "l2" else in_levels))


def distances(some: NDArray[Any], others: NDArray[Any], norm: str) -> NDArray[np.int64]:
    """Between rows of stored levels, in whole levels; squared for l2."""
    parts = [np.zeros(0, dtype=np.int64)]
    for first in range(0, len(some), _ROWS):
        rows = slice(first, first + _ROWS)
        moves = np.abs(some[rows].astype(np.int64) - others[rows].astype(np.int64))
        parts.append(moves.max(axis=1, initial=0) if norm == "linf" else (moves**2 if norm == "l2" else moves).sum(axis=1))
    return np.concatenate(parts)


def in_units(measured: NDArray[np.int64], norm: str, levels: int) -> NDArray[np.float64]:
    """What ``distances`` measured, in input units."""
    plain = measured.astype(np.float64)
    return np.asarray((np.sqrt(plain) if norm == "l2" else plain) / levels)


def ball_problems(
    tensors: Tensors, table: AttackTable, settings: dict[str, Any], originals: Originals | None
) -> Iterator[Problem]:
    """Whether the attacked inputs lie where the lines say; all tensors of ``table`` must be there."""
    if originals is None:
        yield from _apart_problems(tensors, table, settings)
        return
    inputs, norm, levels = originals.rows(0, settings["inputs"]), settings["norm"], settings["levels"]
    for entry, length in zip(table.entries, table.length[1:], strict=True):
        moved = distances(tensors[entry.name], inputs, norm)
        true = in_units(moved, norm, levels)
        outside = moved > budget(norm, entry.size, levels)
        yield from _first(entry, outside, "an attacked input lies outside the ball", true, f"at most {entry.size}")
        lie = ~((length >= true - FLOAT_SLACK) & (length <= true + ROUNDING_UNIT + FLOAT_SLACK))
        yield from _first(entry, lie & ~outside, "an attacked input is not as far away as attacks.csv says", true, "length")


def _apart_problems(tensors: Tensors, table: AttackTable, settings: dict[str, Any]) -> Iterator[Problem]:
    """Each version of an input against the one that is said to be nearest to the original (often the original itself)."""
    norm, levels = settings["norm"], settings["levels"]
    nearest = table.length[1:].argmin(axis=0)
    anchors = np.zeros_like(tensors[table.entries[0].name], dtype=np.uint16)
    for at, entry in enumerate(table.entries):
        anchors[nearest == at] = tensors[entry.name][nearest == at]
    spare = table.length[1:].min(axis=0)
    for entry, length in zip(table.entries, table.length[1:], strict=True):
        apart = in_units(distances(tensors[entry.name], anchors, norm), norm, levels)
        outside = ~(apart <= length + spare + FLOAT_SLACK)
        wanted = "versions of one input no further apart than their lengths together"
        yield from _first(entry, outside, "an attacked input lies outside the ball", apart, wanted)


def _first(entry: Entry, mask: NDArray[np.bool_], what: str, column: NDArray[np.float64], wanted: str) -> Iterator[Problem]:
    """One problem for an entry, naming the first input of several."""
    places = np.flatnonzero(mask)
    if len(places):
        got = f"input {places[0]} at a distance of {float(column[places[0]])!r}; {len(places)} inputs in all"
        yield Problem(FILE, f"{entry.name}: {what}", got, wanted)
