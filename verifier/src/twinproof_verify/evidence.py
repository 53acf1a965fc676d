"""Reading files that may have been made to deceive: each is read once, and nothing in it is believed.

Whatever bytes a file holds, the functions here return a value or a :class:`Problem`; they do not raise, follow links out of the
run, wait on a pipe, or read without bound. What is hashed is what is parsed and what is loaded: every check asks
``RunFolder.content``, which reads a file once.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from twinproof_verify.findings import Problem, VerifyError

# What is parsed into Python's objects takes many times its size; tables of numbers and weights do not.
LARGEST_RECORD = 16 * 2**20
LARGEST_LOG = 64 * 2**20
LARGEST_TABLE = 256 * 2**20
LARGEST_MODEL = 2 * 2**30
SHOWN_CHARACTERS = 160
FOLDERS = ("certificates", "attacks", "audits")
"""Folders of a run that hold evidence, since format 3."""


def shown(value: object) -> str:
    """``value`` as short printable ASCII, so that no content of a file can disturb a terminal or a JSON writer."""
    if isinstance(value, int) and abs(value) > 2**64:
        return "an integer beyond 64 bits"  # writing out a huge integer is slow, and refused by Python beyond 4300 digits
    try:
        text = value if isinstance(value, str) else json.dumps(_beginning(value))
    except (TypeError, ValueError, RecursionError):
        text = f"a value of type {type(value).__name__}"
    plain = text[:1000].encode("ascii", "backslashreplace").decode("ascii")
    plain = "".join(letter if letter.isprintable() else "?" for letter in plain)
    return plain if len(plain) <= SHOWN_CHARACTERS else plain[:SHOWN_CHARACTERS] + "..."


def _beginning(value: object, depth: int = 4) -> object:
    """As much of ``value`` as can be shown, and little more: it may hold millions of others."""
    if isinstance(value, str):
        return value[:1000]
    if isinstance(value, list):
        return [_beginning(one, depth - 1) for one in value[:SHOWN_CHARACTERS]] if depth else "..."
    if isinstance(value, dict):
        some = islice(value.items(), SHOWN_CHARACTERS)
        return {str(name)[:1000]: _beginning(one, depth - 1) for name, one in some} if depth else "..."
    return value


def whole_lines(content: bytes) -> Iterator[bytes]:
    for line in io.BytesIO(content):
        if line.endswith(b"\n"):
            yield line[:-1]


def cut_off(content: bytes) -> bytes:
    return content[content.rfind(b"\n") + 1 :]


class RunFolder:
    """The files of one run by name, each read at most once."""

    def __init__(self, root: Path) -> None:
        """Lists what is there; refuses what is not a run directory."""
        self.root = root
        main = "run.json"
        try:
            names = os.listdir(root)  # noqa: PTH208 (names, also of a path that holds a NUL)
            got = f"no {main} in it"
        except (OSError, ValueError) as error:
            names, got = [], shown(str(error))
        self.names = tuple(sorted([*names, *(inner for name in names if name in FOLDERS for inner in self._inside(name))]))
        """Everything in the run, as paths with ``/``; of its folders only those that hold evidence are looked into."""
        if main not in names:
            raise VerifyError(
                "this is not a run directory",
                where=shown(str(root)),
                got=got,
                wanted="a directory made by `twinproof train` or `twinproof demo`",
                fix="check the path",
            )
        self._read: dict[str, bytes | Problem] = {}

    def _inside(self, name: str) -> Iterator[str]:
        """What a folder of evidence holds, two levels deep; links are not followed."""
        if not stat.S_ISDIR(self.mode(name)):
            return
        try:
            found = [f"{name}/{one}" for one in os.listdir(self.root / name)]  # noqa: PTH208
        except OSError:
            return  # its files are missing, then
        for one in found:
            yield one
            if one.count("/") == 1:
                yield from self._inside(one)

    def mode(self, name: str) -> int:
        """Type and permission bits of ``name`` itself, not of what a link points to; 0 where it cannot be asked."""
        return _mode(self.root / name)

    def content(self, name: str) -> bytes | Problem:
        """The bytes of the file ``name``, or why they cannot be had."""
        if name not in self._read:
            self._read[name] = _read_regular(self.root, name)
        return self._read[name]


def _limit(name: str) -> int:
    if name.endswith(".safetensors"):
        return LARGEST_MODEL
    if name.endswith(".jsonl"):
        return LARGEST_LOG
    return LARGEST_TABLE if name.endswith(".csv") or name.startswith("report.") else LARGEST_RECORD


def _open(root: Path, name: str) -> int:
    """A handle of a file; neither it nor a folder on the way may be a link."""
    *folders, last = name.split("/")
    plain = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    if not folders or os.open not in os.supports_dir_fd:
        return os.open(root / name, plain)
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            inner = os.open(folder, plain | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(last, plain, dir_fd=at)
    finally:
        os.close(at)


def _read_regular(root: Path, name: str) -> bytes | Problem:
    limit, path = _limit(name), root / name
    try:
        # What is asked for its type and size is what is read: a name can point elsewhere a moment later.
        handle = _open(root, name)
        with open(handle, "rb", buffering=0) as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                return _not_regular(name, status.st_mode)
            if status.st_size > limit:
                return _too_large(name, f"{status.st_size} bytes", limit)
            content = _read_whole(file, status.st_size)
    except FileNotFoundError:
        return Problem(name, "the file is missing", "no such file", "the file that the run format asks for")
    except MemoryError:
        return _too_large(name, "more than this machine's memory", limit)
    except (OSError, ValueError) as error:
        mode = _mode(path)
        if mode and not stat.S_ISREG(mode):
            return _not_regular(name, mode)
        return Problem(name, "the file cannot be read", shown(str(error)), "a readable file")
    if len(content) > status.st_size:
        return _too_large(name, f"{status.st_size} bytes, and more while it was read", limit)
    return content


def _read_whole(file: io.RawIOBase, size: int) -> bytes:
    """Up to ``size`` bytes and one more, which tells that the file is growing."""
    parts, missing = [], size + 1
    while missing and (part := file.read(missing)):
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except (OSError, ValueError):
        return 0


def _not_regular(name: str, mode: int) -> Problem:
    return Problem(name, "this is not a regular file", stat.filemode(mode), "a file, not a link or a folder")


def _too_large(name: str, got: str, limit: int) -> Problem:
    return Problem(name, "the file is too large to be checked", got, f"at most {limit} bytes")


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return record


def parse_object(content: bytes) -> dict[str, Any] | str:
    """One JSON object, or in words why it is none. Twice-named keys and NaN are refused: readers disagree about them."""
    try:
        record = json.loads(content.decode("utf-8"), parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except RecursionError:
        return "objects nested too deeply"
    except ValueError as error:
        return shown(str(error))
    return record if isinstance(record, dict) else f"a JSON value of type {type(record).__name__}"


def digest_of(value: Any) -> str | None:
    """SHA-256 of the canonical JSON of ``value`` as docs/formats/run.md defines it; None where it has no such form."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return sha256(text.encode("utf-8"))
    except (TypeError, ValueError, RecursionError):
        return None


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


Tensors = dict[str, dict[str, Any]]
"""Raw tensors by name: ``dtype`` in the words of safetensors, ``shape`` and ``data``."""


def raw_tensors(content: bytes) -> Tensors | str:
    """The tensors of a safetensors file, or in words why they cannot be read."""
    try:
        return dict(deserialize(content))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        return shown(str(error))


@dataclass(frozen=True)
class Originals:
    """The inputs of the test set as they are stored, (records, ...) in levels, and their classes."""

    inputs: NDArray[Any]
    labels: NDArray[Any]

    def rows(self, first: int, last: int) -> NDArray[np.int64]:
        some = self.inputs[first:last]
        return some.reshape(len(some), -1).astype(np.int64)


_EXACT = Context(prec=1200)


def _rounded(value: float, rounding: str) -> Decimal:
    """Six places. A float that is itself the nearest one to a decimal of six places stands for that decimal."""
    step = Decimal("0.000001")
    nearest = Decimal(value).quantize(step, rounding=ROUND_HALF_EVEN, context=_EXACT)
    return nearest if float(nearest) == value else Decimal(value).quantize(step, rounding=rounding, context=_EXACT)


def round_up(value: float) -> float:
    """The smallest decimal with six places that is not below ``value``."""
    return float(format_up(value))


def format_up(value: float) -> str:
    return format(_rounded(value, ROUND_CEILING), "f") if math.isfinite(value) else str(value)


def format_down(value: float) -> str:
    """The largest decimal with six places that is not above ``value``, as text."""
    return format(_rounded(value, ROUND_FLOOR), "f") if math.isfinite(value) else str(value)
