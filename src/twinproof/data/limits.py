"""Limits on what is read, and the one way in which an unreadable file ends.

A file may declare more than it holds, unpack to a thousand times its size, or never end. Sizes are therefore checked before
memory is taken, only regular files are opened, and what a decoder raises becomes one :class:`DataError`.
docs/formats/data.md lists the limits for users.
"""

from __future__ import annotations

import errno
import gzip
import os
import stat
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
from numpy.typing import NDArray

from twinproof.errors import DataError, TwinproofError, fault_of

PARQUET_SUFFIXES = (".parquet", ".pq")
FILE_BYTES = 64 * 2**30
"""The largest file that is opened."""
UNPACKED_BYTES = 512 * 2**20
"""Records may always take this much memory, however small their files are."""
UNPACKED_RATIO = 50
"""Beyond ``UNPACKED_BYTES``, records take at most this many times the size of their files."""
RECORD_BYTES = 64
"""What a record costs beside its input: its label, class number and side of the split."""
NAME_CHARACTERS = 256
"""The longest name of a class or a column."""
COLUMNS = 65_536
"""The most columns of a table."""
IMAGE_PIXELS = 2**25
"""The most pixels of one image (8192 x 4096)."""
HEADER_BYTES = 1_000
"""The longest header of an array in an .npz file; NumPy's own have fewer than 200."""
SETTINGS_BYTES = 2**20
"""The longest settings file (``--config``)."""
SHARES_BYTES = 16 * 2**20
"""The longest file with a redistribution vector (``--r``)."""

DECODER_ERRORS: tuple[type[Exception], ...] = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    EOFError,
    BufferError,
    RuntimeError,
    SyntaxError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    tokenize.TokenError,
)
"""What decoders of damaged files raise. MemoryError is not among them: the limits above keep files from causing one."""

# The machine's own faults: another file would not help.
_SYSTEM = {errno.EACCES, errno.EPERM, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ESTALE} | {
    errno.ENODEV,
    errno.ETIMEDOUT,
}
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
_SHOWN = 20
_CHUNK = 2**20


def row_bytes(columns: int) -> int:
    """The longest row of a CSV file with this many columns."""
    return 2**20 + 256 * columns


def open_regular(path: Path, limit: int = FILE_BYTES) -> BinaryIO:
    """Opens a regular file of at most ``limit`` bytes; pipes and devices, which may never end, are refused."""
    with reading(path):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                got, fix = _KINDS.get(stat.S_IFMT(status.st_mode), "something else"), "save the content as a file"
                raise DataError("this is not a regular file", where=str(path), got=got, wanted="a regular file", fix=fix)
            if status.st_size > limit:
                raise too_large("the file is too large", path, status.st_size, limit)
            return os.fdopen(handle, "rb")
        except BaseException:
            os.close(handle)
            raise


def read_regular(path: Path, limit: int) -> bytes:
    """The content of a small regular file."""
    with open_regular(path, limit) as handle:
        content = handle.read(limit + 1)  # the file may have grown since its size was read
    if len(content) > limit:
        raise too_large("the file is too large", path, None, limit)
    return content


def read_exactly(stream: IO[bytes] | gzip.GzipFile, count: int) -> tuple[NDArray[np.uint8], int]:
    """The next ``count`` bytes, and how many there were: one more where the stream goes on."""
    content, found = np.empty(count, dtype=np.uint8), 0
    while found < count and (chunk := stream.read(min(_CHUNK, count - found))):
        content[found : found + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
        found += len(chunk)
    # Asking for one byte more also makes decoders compare their checksums.
    return content, found + len(stream.read(1))


def file_size(handle: BinaryIO) -> int:
    """Bytes on the disk of an open file."""
    return os.fstat(handle.fileno()).st_size


def check_unpacked(needed: int, on_disk: int, where: object, fix: str) -> None:
    """Ends in an error where records would take more memory than a file of ``on_disk`` bytes accounts for."""
    limit = max(UNPACKED_BYTES, UNPACKED_RATIO * on_disk)
    if needed > limit:
        raise DataError(
            "the records take too much memory for a file of this size",
            where=str(where),
            got=f"{_size(needed)} of records in {_size(on_disk)} on the disk",
            wanted=f"at most {_size(limit)}: the larger of {_size(UNPACKED_BYTES)} and {UNPACKED_RATIO} times the file's size",
            fix=fix,
        )


def too_large(what: str, where: object, got: int | None, limit: int) -> DataError:
    """The error for a size above one of the limits; None where reading ended at the limit."""
    seen = f"more than {_size(limit)}" if got is None else _size(got)
    return DataError(what, where=str(where), got=seen, wanted=f"at most {_size(limit)}", fix="see docs/formats/data.md, Limits")


def check_names(names: Iterable[str], where: object, what: str) -> None:
    """Names of classes or columns end up in run.json and on the page: they are text, and short."""
    wanted, fix = f"UTF-8 text of at most {NAME_CHARACTERS} characters", "use short names of plain text"
    for name in names:
        if len(name) > NAME_CHARACTERS:
            got = f"{name[:_SHOWN]!r}... ({len(name)} characters)"
            raise DataError(f"{what} is too long", where=str(where), got=got, wanted=wanted, fix=fix)
        if not is_text(name):
            raise DataError(f"{what} is not valid text", where=str(where), got=ascii(name), wanted=wanted, fix=fix)


def is_text(value: str) -> bool:
    """Whether UTF-8 can hold the text; lone surrogates, which stand for undecodable bytes, it cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def listed(names: Iterable[str], count: int, kind: str = "in all") -> str:
    """The first of ``count`` names, for error messages."""
    shown = ", ".join(islice(names, _SHOWN))
    return shown if count <= _SHOWN else f"{shown}, ... ({count} {kind})"


@contextmanager
def reading(
    where: object, wanted: str = "a file that can be read", fix: str = "", errors: tuple[type[Exception], ...] = DECODER_ERRORS
) -> Iterator[None]:
    """Turns what reading a file may raise into one DataError that names the file.

    Guarantees
        No content of a file ends in anything but the block's result or an error of ours. Faults of the machine (a disk
        that fails, a permission that is missing, memory that runs out) say nothing about the file, and are not called bad data.
    """
    try:
        # Numbers that are not finite are refused by name; NumPy need not warn about them as well.
        with np.errstate(all="ignore"):
            yield
    except (TwinproofError, MemoryError):
        raise
    except errors as error:
        if isinstance(error, OSError) and error.errno in _SYSTEM:
            raise fault_of(error, where=str(where)) or error from error
        raise DataError("the file cannot be read", where=str(where), got=_reason(error), wanted=wanted, fix=fix) from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _size(number: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number} bytes"
