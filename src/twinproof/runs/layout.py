"""Where things lie in a run directory (docs/formats/run.md), and reading its main file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinproof.errors import RunError
from twinproof.runs.reading import broken, read_json, shown
from twinproof.runs.run_model import Needs, RunFile, missing_keys

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


def read_run_json(root: Path, needs: Needs | None = None) -> dict[str, Any]:
    """The content of ``run.json``; a clear error where ``root`` is no run or the file is broken.

    ``needs`` are the keys that must be there (``run_model.STARTED`` and others).
    """
    path = RunLayout(root).run_json
    if not path.is_file():
        raise RunError(
            "this is not a run directory",
            where=str(root),
            got="no run.json in it",
            wanted="a directory made by `twinproof train` or `twinproof demo`",
            fix="check the path",
        )
    found = read_json(path)
    refuse_unknown_format(path, found.record.get("format"))  # first: of a newer format the keys may differ
    found.typed(RunFile)
    refuse_missing(root, found.record, needs or {})
    return found.record


def refuse_missing(root: Path, record: Mapping[str, Any], needs: Needs) -> None:
    """Raises RunError unless ``record``, which is that of ``run.json``, has all the keys of ``needs``."""
    if missing := missing_keys(record, needs):
        raise broken(RunLayout(root).run_json, f"key {', '.join(missing[:5])}", "nothing", "the format of docs/formats/run.md")


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
    raise RunError(f"{path.name} has an unknown format", where=f"{path}, key format", got=shown(found), wanted=wanted)
