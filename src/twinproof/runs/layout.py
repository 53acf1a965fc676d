"""Where things lie in a run directory (docs/formats/run.md), and reading its main file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinproof.errors import RunError

FORMAT = 2
"""The format that is written now. A run keeps the number it began with, whatever is added to it later."""
FORMATS = (1, 2)
"""The formats that are read."""


@dataclass(frozen=True)
class RunLayout:
    """The paths of one run; nothing is created or read by making this record."""

    root: Path

    @property
    def run_json(self) -> Path:
        """What was run and what is promised."""
        return self.root / "run.json"

    @property
    def model(self) -> Path:
        """The weights."""
        return self.root / "model.safetensors"

    @property
    def ledger(self) -> Path:
        """Privacy-spending events."""
        return self.root / "ledger.jsonl"

    @property
    def metrics(self) -> Path:
        """Progress on the test set."""
        return self.root / "metrics.jsonl"

    @property
    def certificates_json(self) -> Path:
        """Settings of the certification."""
        return self.root / "certificates.json"

    @property
    def certificates_csv(self) -> Path:
        """One line per certified input."""
        return self.root / "certificates.csv"

    @property
    def report_html(self) -> Path:
        """The report for people."""
        return self.root / "report.html"

    @property
    def report_json(self) -> Path:
        """The report for machines."""
        return self.root / "report.json"

    @property
    def private(self) -> Path:
        """What depends on the training records and never leaves."""
        return self.root / "private"


def read_run_json(root: Path) -> dict[str, Any]:
    """The content of ``run.json``; a clear error where ``root`` is no run or the file is broken."""
    path = RunLayout(root).run_json
    if not path.is_file():
        raise RunError(
            "this is not a run directory",
            where=str(root),
            got="no run.json in it",
            wanted="a directory made by `twinproof train` or `twinproof demo`",
            fix="check the path",
        )
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError("run.json cannot be read", where=str(path), got=error, wanted="valid JSON") from error
    if not isinstance(record, dict):
        raise RunError("run.json has an unknown format", where=str(path), got=type(record).__name__, wanted="a JSON object")
    refuse_unknown_format(path, record.get("format"))
    return record


def refuse_unknown_format(path: Path, found: object) -> None:
    """Raises RunError unless ``found``, the format that the file ``path`` states, is one that this version reads."""
    if type(found) is int and found in FORMATS:
        return
    wanted = f"format {FORMATS[0]} to {FORMATS[-1]}"
    if type(found) is int and found > FORMATS[-1]:
        raise RunError(
            f"{path.name} was made by a newer version of twinproof",
            where=str(path),
            got=f"format {found}",
            wanted=wanted,
            fix="upgrade twinproof",
        )
    raise RunError(f"{path.name} has an unknown format", where=str(path), got=found, wanted=wanted)


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Every complete line of a JSON-lines file; a last line that a kill left half written is passed over."""
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")
    return [_json_line(path, number, line) for number, line in enumerate(lines[:-1], start=1) if line]


def _json_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise RunError(f"{path.name} is broken", where=f"{path}, line {number}", got=error, wanted="a JSON object") from error
    if not isinstance(record, dict):
        raise RunError(
            f"{path.name} is broken", where=f"{path}, line {number}", got=type(record).__name__, wanted="a JSON object"
        )
    return record
