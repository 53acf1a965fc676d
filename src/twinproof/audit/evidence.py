"""Reading files that may have been made to deceive: each is read once, and nothing in it is believed.

Guarantees
    Whatever bytes a file holds, the functions here return a value or a :class:`Problem`; they do not raise, follow links out
    of the run, wait on a pipe, or read without bound. What is hashed is what is parsed, because both use one reading.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from twinproof.audit.verification import Problem
from twinproof.errors import RunError
from twinproof.runs.layout import RunLayout

LARGEST_TEXT = 256 * 2**20
LARGEST_MODEL = 16 * 2**30
SHOWN_CHARACTERS = 160


def shown(value: object) -> str:
    """``value`` as short printable ASCII, so that no content of a file can disturb a terminal or a JSON writer."""
    if isinstance(value, int) and abs(value) > 2**64:
        return "an integer beyond 64 bits"  # writing out a huge integer is slow, and refused by Python beyond 4300 digits
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = f"a value of type {type(value).__name__}"
    plain = text.encode("ascii", "backslashreplace").decode("ascii")
    plain = "".join(letter if letter.isprintable() else "?" for letter in plain)
    return plain if len(plain) <= SHOWN_CHARACTERS else plain[:SHOWN_CHARACTERS] + "..."


class RunFolder:
    """The files of one run by name, each read at most once."""

    def __init__(self, root: Path) -> None:
        """Lists what is there; refuses what is not a run directory."""
        self.root = root
        main = RunLayout(root).run_json.name
        try:
            self.names = tuple(sorted(os.listdir(root)))  # noqa: PTH208 (names, also of a path that holds a NUL)
            got = f"no {main} in it"
        except (OSError, ValueError) as error:
            self.names, got = (), shown(str(error))
        if main not in self.names:
            raise RunError(
                "this is not a run directory",
                where=shown(str(root)),
                got=got,
                wanted="a directory made by `twinproof train` or `twinproof demo`",
                fix="check the path",
            )
        self._read: dict[str, bytes | Problem] = {}

    def mode(self, name: str) -> int:
        """Type and permission bits of ``name`` itself, not of what a link points to; 0 where it cannot be asked."""
        try:
            return (self.root / name).lstat().st_mode
        except OSError:
            return 0

    def content(self, name: str) -> bytes | Problem:
        """The bytes of the file ``name``, or why they cannot be had."""
        if name not in self._read:
            self._read[name] = _read_regular(self.root / name, name)
        return self._read[name]


def _read_regular(path: Path, name: str) -> bytes | Problem:
    limit = LARGEST_MODEL if name.endswith(".safetensors") else LARGEST_TEXT
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            return Problem(name, "this is not a regular file", stat.filemode(status.st_mode), "a file, not a link or a folder")
        if status.st_size > limit:
            return Problem(name, "the file is too large to be checked", f"{status.st_size} bytes", f"at most {limit} bytes")
        with open(path, "rb") as handle:
            content = handle.read(limit + 1)
    except FileNotFoundError:
        return Problem(name, "the file is missing", "no such file", "the file that the run format asks for")
    except (OSError, ValueError) as error:
        return Problem(name, "the file cannot be read", shown(str(error)), "a readable file")
    if len(content) > limit:
        return Problem(name, "the file is too large to be checked", f"more than {limit} bytes", f"at most {limit} bytes")
    return content


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
    """Hexadecimal SHA-256."""
    return hashlib.sha256(content).hexdigest()
