"""Writing files so that a reader never sees half of one, reading them within limits, and naming their content by digest."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from twinproof.errors import RunError, SystemFault, fault_of

LARGEST_RECORD = 64 * 2**20
"""The most bytes of a JSON file, or of one with a JSON object on each line."""
LARGEST_TABLE = 512 * 2**20
"""The most bytes of a CSV file."""
LARGEST_INTEGER = 2**63 - 1
_DEEPEST = 40  # objects inside objects; a run needs eight


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no spaces, no NaN. Digests are taken over this form."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def make_folder(folder: Path, purpose: str) -> None:
    """Makes ``folder`` and its parents; a path that cannot be one is refused."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fault = fault_of(error)
        if isinstance(fault, SystemFault):
            raise fault from error
        raise RunError(
            "this directory cannot be made",
            where=str(folder),
            got=error.strerror,
            wanted=f"a place for {purpose} where one can write",
            fix="check the path",
        ) from error


def make_folder_below(base: Path, folder: Path) -> None:
    """Makes ``folder`` inside ``base``, which must exist: a base that vanished is not made again without its files."""
    if not base.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(base))
    folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Gives the system's errors the path that they are about; a write or a sync that fails does not say it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Makes a rename or a new name in ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with naming(folder):
            os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, content: bytes) -> None:
    """Replaces ``path`` by ``content`` in one step: a reader, or a killed writer, leaves the old or the new, never a mix.

    Where the system fails (a full disk), the old content stays and nothing is left beside it.
    """
    temporary = path.with_name(path.name + ".part")
    with naming(path):
        try:
            with open(temporary, "wb") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def append_line(path: Path, line: str) -> None:
    """Adds a line to a file; a kill or a full disk may leave a part of it, which readers of lines pass over."""
    with naming(path), open(path, "a", encoding="utf-8") as handle:
        handle.write(line + "\n")


def write_json(path: Path, value: Any) -> None:
    """Writes ``value`` as indented, sorted JSON, atomically."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(path, (text + "\n").encode())


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def read_bounded(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes; RunError for a larger one, a folder, a pipe or a device."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not be waited for
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            kind = stat.filemode(status.st_mode)
            raise RunError(f"{path.name} is not a regular file", where=str(path), got=kind, wanted="a file")
        with open(handle, "rb", closefd=False) as file:
            content = file.read(limit + 1) if status.st_size <= limit else None
    finally:
        os.close(handle)
    if content is None or len(content) > limit:
        got = f"{max(status.st_size, limit + 1)} bytes"
        raise RunError(f"{path.name} is too large", where=str(path), got=got, wanted=f"at most {limit} bytes")
    return content


def strict_json(content: bytes) -> Any:
    """One JSON value, read strictly; ValueError with the place where it is malformed.

    Text is UTF-8, no key appears twice in an object, numbers are finite, integers fit into 64 bits, strings can be printed, and
    objects are nested at most 40 deep.
    """
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except RecursionError:
        raise ValueError("objects are nested too deep") from None
    _check_value(value, "", 0)
    return value


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        twice = next(name for number, (name, _) in enumerate(pairs) if name in dict(pairs[:number]))
        raise ValueError(f"the key {twice[:60]!r} appears twice in one object")
    return record


def _check_value(value: Any, place: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError(f"objects are nested more than {_DEEPEST} deep")
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_text(name, place)
            _check_value(inner, f"{place}.{name[:60]}" if place else name[:60], depth + 1)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            if type(inner) is not int or abs(inner) > LARGEST_INTEGER:
                _check_value(inner, f"{place}.{number}", depth + 1)
    elif isinstance(value, str):
        _check_text(value, place)
    elif isinstance(value, int):
        if abs(value) > LARGEST_INTEGER:
            raise ValueError(f"{place}: an integer of more than 64 bits")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place}: a number that is not finite")


def _check_text(text: str, place: str) -> None:
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{place}: text with half of a surrogate pair") from None
