"""The append-only, hash-chained record of every privacy-spending event of a run (docs/formats/run.md).

Meanings never change: a new kind of event gets a new name, fields are only added, and an unknown kind is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from twinproof.errors import RunError
from twinproof.files import LARGEST_INTEGER, LARGEST_RECORD, canonical_json, naming, read_bounded, strict_json, sync_folder
from twinproof.privacy.accounting import Event, GaussianEvent, LaplaceEvent, PoissonGaussianEvent

FORMAT = 2
NEIGHBOURS = "replace-by-null"
GENESIS = "0" * 64
KINDS = ("open", "gaussian", "laplace", "poisson-gaussian", "close")


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Open(_Body):
    config_sha256: str = ""
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None


class _Mechanism(_Body):
    noise_multiplier: Annotated[float, Field(gt=0)]


class _Steps(_Mechanism):
    sample_rate: Annotated[float, Field(gt=0, le=1)]
    steps: Annotated[int, Field(ge=1, le=LARGEST_INTEGER)]


_BODIES: dict[str, TypeAdapter[Any]] = {
    "open": TypeAdapter(_Open),
    "gaussian": TypeAdapter(_Mechanism),
    "laplace": TypeAdapter(_Mechanism),
    "poisson-gaussian": TypeAdapter(_Steps),
    "close": TypeAdapter(dict[str, Any]),
}


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    index: int
    kind: str
    body: dict[str, Any]
    previous: str

    @property
    def hash(self) -> str:
        """SHA-256 over the canonical form of everything else in the line."""
        return hashlib.sha256(canonical_json(asdict(self)).encode()).hexdigest()

    def line(self) -> bytes:
        return (canonical_json({**asdict(self), "hash": self.hash}) + "\n").encode()


class Ledger:
    """A run's ledger, open for appending.

    Guarantees
        An entry is on the disk (flushed and synced) when ``append`` returns, and the steps it announces are drawn only
        afterwards (``PrivateExecution.draw``): whatever kills the process, the ledger never counts fewer steps than were
        taken. A last line that a kill cut short is removed when the ledger is opened, since nobody relied on it yet; one
        that lacks only its newline is kept, since counting too much is safe. Any other changed byte is refused, and so are
        lines that another process has added or removed.
    """

    def __init__(self, path: Path, entries: list[Entry]) -> None:
        self._path = path
        self.entries = entries
        self._measured = self._bytes = 0  # how many of the entries, and how long their lines are

    @classmethod
    def create(cls, path: Path, *, config_sha256: str, delta: float | None) -> Ledger:
        """Starts a new ledger; refuses to replace one."""
        if path.exists():
            raise RunError("there is a ledger already", where=str(path), got="an existing file", wanted="a new run directory")
        ledger = cls(path, [])
        ledger.append("open", {"format": FORMAT, "config_sha256": config_sha256, "delta": delta, "neighbours": NEIGHBOURS})
        sync_folder(path.parent)
        return ledger

    @classmethod
    def load(cls, path: Path) -> Ledger:
        """Opens an existing ledger, checks its chain, and cuts off a half-written last line."""
        if not path.is_file():
            raise RunError("the ledger is missing", where=str(path), got="no such file", wanted="the run's ledger.jsonl")
        # Not splitlines(): it would also take a carriage return for the end of a line.
        *lines, tail = read_bounded(path, LARGEST_RECORD).split(b"\n")
        ledger = cls(path, [])
        for line in lines:
            ledger.entries.append(_checked_entry(path, len(ledger.entries), line, ledger._last_hash))
        if tail:
            ledger._mend_tail(tail)
        if not ledger.entries:
            raise RunError("the ledger is empty", where=str(path), got="no entry", wanted="a first line of kind 'open'")
        return ledger

    def append(self, kind: str, body: dict[str, Any]) -> None:
        """Adds an entry and returns once it is safely on the disk."""
        if kind not in KINDS or self.closed:
            raise RunError(
                "this cannot be added to the ledger",
                where=str(self._path),
                got=f"{kind!r} after {self.entries[-1].kind if self.entries else 'nothing'!r}",
                wanted=f"one of {', '.join(KINDS)}, and nothing after 'close'",
            )
        entry = Entry(len(self.entries), kind, body, self._last_hash)
        self._write(entry.line(), expected=True)
        self.entries.append(entry)

    def _write(self, content: bytes, *, expected: bool) -> None:
        with naming(self._path), open(self._path, "ab") as handle:
            if expected:
                self._refuse_other_writers(handle.tell())
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())

    def _refuse_other_writers(self, size: int) -> None:
        """A line's number names the noise of what it announces: a second writer would announce other things under it."""
        for entry in self.entries[self._measured :]:
            self._bytes += len(entry.line())
        self._measured = len(self.entries)
        if size != self._bytes:
            raise RunError(
                "the ledger was changed by another process",
                where=str(self._path),
                got=f"{size} bytes",
                wanted=f"{self._bytes} bytes, as this process has it",
                fix="open the ledger again; one process at a time writes a ledger",
            )

    def _mend_tail(self, tail: bytes) -> None:
        """Deals with what stands after the last newline: an entry without its newline, or the start of one."""
        try:
            json.JSONDecoder().raw_decode(tail.decode(errors="replace"))
        except ValueError:
            os.truncate(self._path, self._path.stat().st_size - len(tail))
            return
        self.entries.append(_checked_entry(self._path, len(self.entries), tail, self._last_hash))
        self._write(b"\n", expected=False)

    @property
    def _last_hash(self) -> str:
        return self.entries[-1].hash if self.entries else GENESIS

    @property
    def config_sha256(self) -> str:
        """The digest of the settings that this ledger was opened for."""
        return str(self.entries[0].body.get("config_sha256", ""))

    @property
    def reserved_steps(self) -> int:
        """How many steps have been announced so far."""
        return sum(int(entry.body["steps"]) for entry in self.entries if entry.kind == "poisson-gaussian")

    @property
    def closed(self) -> bool:
        """Whether the weights have left."""
        return bool(self.entries) and self.entries[-1].kind == "close"

    def events(self) -> list[Event]:
        """The spending so far, equal blocks merged, as the accountants take it."""
        merged: list[Event] = []
        for entry in self.entries:
            last = merged[-1] if merged else None
            if entry.kind == "gaussian":
                merged.append(GaussianEvent(entry.body["noise_multiplier"]))
            elif entry.kind == "laplace":
                merged.append(LaplaceEvent(entry.body["noise_multiplier"]))
            elif entry.kind == "poisson-gaussian":
                block = PoissonGaussianEvent(entry.body["sample_rate"], entry.body["noise_multiplier"], entry.body["steps"])
                if isinstance(last, PoissonGaussianEvent) and replace(last, steps=block.steps) == block:
                    merged[-1] = replace(last, steps=last.steps + block.steps)
                else:
                    merged.append(block)
        return merged


def _checked_entry(path: Path, number: int, line: bytes, previous: str) -> Entry:
    where = f"{path.name}, line {number + 1}"
    try:
        record = strict_json(line)
        entry = Entry(record["index"], record["kind"], dict(record["body"]), record["previous"])
        # Byte for byte: another spelling of the same values is a changed ledger too.
        intact = entry.line() == line + b"\n"
    except (ValueError, KeyError, TypeError) as error:
        raise RunError("a ledger line cannot be read", where=where, got=error, wanted="one JSON object") from error
    if not intact or entry.previous != previous or entry.index != number:
        raise RunError(
            "the ledger's chain is broken",
            where=where,
            got="a line that does not follow the one before it",
            wanted="an untouched ledger",
            fix="restore the file; a run whose ledger was changed cannot be continued",
        )
    if entry.kind not in KINDS or (entry.kind == "open") != (number == 0):
        raise RunError(
            "the ledger holds an entry that cannot be counted",
            where=where,
            got=entry.kind,
            wanted="'open' on the first line alone, then " + ", ".join(KINDS[1:]),
            fix="use the version of twinproof that wrote it: an entry that is not understood may have spent privacy",
        )
    try:
        _BODIES[entry.kind].validate_python(entry.body)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key = ".".join(("body", *map(str, fault["loc"])))
        got = "nothing" if fault["type"] == "missing" else repr(fault["input"])[:80]
        raise RunError("a ledger line cannot be read", where=f"{where}, key {key}", got=got, wanted=fault["msg"]) from error
    return entry
