"""The append-only, hash-chained record of every privacy-spending event of a run (docs/formats/run.md).

Meanings never change: a new kind of event gets a new name, fields are only added, and an unknown kind is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from twinproof.errors import RunError
from twinproof.files import canonical_json, sync_folder
from twinproof.privacy.accounting import Event, GaussianEvent, PoissonGaussianEvent

FORMAT = 1
NEIGHBOURS = "add-or-remove-one"
GENESIS = "0" * 64


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
        """The line as it stands in the file."""
        return (canonical_json({**asdict(self), "hash": self.hash}) + "\n").encode()


class Ledger:
    """A run's ledger, open for appending.

    Guarantees
        An entry is on the disk (flushed and synced) when ``append`` returns, and the steps it announces are drawn only
        afterwards (``PrivateExecution.draw``): whatever kills the process, the ledger never counts fewer steps than were
        taken. A last line that a kill cut short was not yet relied on by anybody and is removed when the ledger is opened.
    """

    def __init__(self, path: Path, entries: list[Entry]) -> None:
        self._path = path
        self.entries = entries

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
        content = path.read_bytes()
        complete = content[: content.rfind(b"\n") + 1]
        entries: list[Entry] = []
        for number, line in enumerate(complete.splitlines()):
            entries.append(_checked_entry(path, number, line, entries[-1].hash if entries else GENESIS))
        if len(complete) < len(content):
            os.truncate(path, len(complete))
        return cls(path, entries)

    def append(self, kind: str, body: dict[str, Any]) -> None:
        """Adds an entry and returns once it is safely on the disk."""
        entry = Entry(len(self.entries), kind, body, self.entries[-1].hash if self.entries else GENESIS)
        with open(self._path, "ab") as handle:
            handle.write(entry.line())
            handle.flush()
            os.fsync(handle.fileno())
        self.entries.append(entry)

    @property
    def config_sha256(self) -> str:
        """The digest of the settings that this ledger was opened for."""
        return str(self.entries[0].body["config_sha256"])

    @property
    def reserved_steps(self) -> int:
        """How many steps have been announced so far."""
        return sum(int(entry.body["steps"]) for entry in self.entries if entry.kind == "poisson-gaussian")

    @property
    def closed(self) -> bool:
        """Whether the weights have left."""
        return self.entries[-1].kind == "close"

    def events(self) -> list[Event]:
        """The spending so far, equal blocks merged, as the accountants take it."""
        merged: list[Event] = []
        for entry in self.entries:
            if entry.kind == "gaussian":
                merged.append(GaussianEvent(entry.body["noise_multiplier"]))
            elif entry.kind == "poisson-gaussian":
                block = PoissonGaussianEvent(entry.body["sample_rate"], entry.body["noise_multiplier"], entry.body["steps"])
                last = merged[-1] if merged else None
                if isinstance(last, PoissonGaussianEvent) and (last.sample_rate, last.noise_multiplier) == (
                    block.sample_rate,
                    block.noise_multiplier,
                ):
                    merged[-1] = PoissonGaussianEvent(block.sample_rate, block.noise_multiplier, last.steps + block.steps)
                else:
                    merged.append(block)
        return merged


def _checked_entry(path: Path, number: int, line: bytes, previous: str) -> Entry:
    where = f"{path.name}, line {number + 1}"
    try:
        record = json.loads(line)
        entry = Entry(record["index"], record["kind"], record["body"], record["previous"])
        intact = record["hash"] == entry.hash
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
    return entry
