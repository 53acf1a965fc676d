"""Cells on disk: the run that was trained, and the numbers, written as soon as they are known; finished ones are kept."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinproof.errors import RunError
from twinproof.files import write_json
from twinproof.papers.cell import Cell

FORMAT = 1
_FILE, _RUN = "cell.json", "run"


@dataclass(frozen=True)
class Measured:
    """A finished cell: its settings, and what was measured; ``numbers`` is described in docs/papers.md."""

    cell: Cell
    numbers: dict[str, Any]
    made: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """The entry of a results file."""
        return {"name": self.cell.name, **self.cell.settings, "numbers": self.numbers, "made": self.made}


@dataclass(frozen=True)
class CellStore:
    """A folder of cells.

    Guarantees
        A cell counts as finished only if its file was written whole and holds the very settings that are asked for now: a
        result is never reused under other settings, whatever its folder is called.
    """

    root: Path

    def run_folder(self, cell: Cell) -> Path:
        """Where the trained run lies: with the cell that it was trained for."""
        return self.root / (cell.base or cell).name / _RUN

    def finished(self, cell: Cell) -> Measured | None:
        """What was measured earlier, or None; RunError where the folder holds something else."""
        path = self.root / cell.name / _FILE
        if not path.is_file():
            return None
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            format_, settings, numbers, made = (record[key] for key in ("format", "settings", "numbers", "made"))
        except (ValueError, KeyError, TypeError) as error:
            raise _refused(path, f"{type(error).__name__}: {error}", "a cell of this program") from error
        wanted = json.loads(json.dumps(cell.settings))
        if (format_, settings) != (FORMAT, wanted):
            raise _refused(path, "a cell made under other settings", f"the settings with digest {cell.digest[:12]}")
        return Measured(cell, numbers, made)

    def keep(self, measured: Measured) -> None:
        """Writes a finished cell, in one step."""
        folder = self.root / measured.cell.name
        folder.mkdir(parents=True, exist_ok=True)
        record = {"settings": measured.cell.settings, "numbers": measured.numbers, "made": measured.made}
        write_json(folder / _FILE, {"format": FORMAT, **record})

    def forget(self, cell: Cell) -> None:
        """Removes a cell with its run, and the cell that the run was trained for."""
        if cell.base is not None:
            self.forget(cell.base)
        folder = self.root / cell.name
        (folder / _FILE).unlink(missing_ok=True)  # first, so that a kill leaves nothing that looks finished
        shutil.rmtree(folder, ignore_errors=True)


def _refused(path: Path, got: object, wanted: str) -> RunError:
    return RunError(
        "a cell on the disk is not the one that is asked for",
        where=str(path),
        got=got,
        wanted=wanted,
        fix="--overwrite makes it again; or choose another --out",
    )
