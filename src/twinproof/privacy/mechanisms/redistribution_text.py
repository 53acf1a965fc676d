"""A redistribution vector as a person gives it: numbers with commas between them, or a file of numbers."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np

from twinproof.data.limits import SHARES_BYTES, check_unpacked, read_regular, reading
from twinproof.data.npy import StoredArray
from twinproof.errors import DataError
from twinproof.privacy.mechanisms.redistribution import Redistribution

_BETWEEN = re.compile(r"[\s,;\[\]]+")


def parse_redistribution(text: str) -> Redistribution:
    """Reads ``0.2,0.3,0.5``, or the file of that name: ``.npy``, or text with commas, spaces or lines between numbers."""
    shares = _numbers(text)
    return Redistribution(_file_numbers(Path(text)) if shares is None else shares)


def _numbers(text: str) -> tuple[float, ...] | None:
    """The numbers of a text, or None where it is something else."""
    words = [word for word in _BETWEEN.split(text) if word]
    try:
        return tuple(float(word) for word in words) or None
    except ValueError:
        return None


def _file_numbers(path: Path) -> tuple[float, ...]:
    try:
        content = read_regular(path, SHARES_BYTES)
        with reading(path):
            shares = _array_numbers(content, path) if path.suffix == ".npy" else _numbers(content.decode())
    except DataError as error:
        raise _unreadable(path, error.got) from error
    if shares is None:
        raise _unreadable(path, "something else than numbers")
    return shares


def _array_numbers(content: bytes, path: Path) -> tuple[float, ...]:
    array = StoredArray(io.BytesIO(content), str(path))
    check_unpacked(array.working_bytes, len(content), path, "")
    return tuple(array.read().astype(np.float64).reshape(-1).tolist())


def _unreadable(path: Path, got: object) -> DataError:
    return DataError(
        "the redistribution vector cannot be read",
        where=str(path),
        got=got,
        wanted="numbers with commas between them, or a file of numbers (text or .npy)",
        fix="for example --r 0.2,0.3,0.5 or --r shares.txt",
    )
