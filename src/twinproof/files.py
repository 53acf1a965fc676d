"""Writing files so that a reader never sees half of one, and naming their content by digest."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from twinproof.errors import RunError, SystemFault, fault_of


def canonical_json(value: Any) -> str:
    """One text for one value: sorted keys, no spaces, no NaN. Digests are taken over this form."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def make_folder(folder: Path, purpose: str) -> None:
    """Makes ``folder``, and those that it lies in, where they are not there; a path that cannot be one is refused."""
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
    """Makes ``folder`` inside ``base``, which must be there: a base that vanished is not made anew, without its files."""
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
