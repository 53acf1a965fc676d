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
from twinproof.runs.layout import COMPLETE, RunLayout, read_run_json, utc_now
from twinproof.runs.reading import read_json

FORMAT = 1
CELLS = "cells"
"""The folder of them, beside those of the experiments."""
RUN_AGAIN = "run"
"""The entry of ``made`` that is there only where the run was made again, and says how."""
_FILE, _RUN, _AGAIN = "cell.json", "run", "run-again.json"


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

    def note_run_again(self, cell: Cell) -> None:
        """Writes down, before it is done, that the run of a finished cell is made again: its numbers come from another one."""
        write_json(self.root / cell.name / _AGAIN, {"format": FORMAT, "date": utc_now()})

    def has_run_again(self, cell: Cell) -> bool:
        """Whether the run that ``cell`` goes on with was made again after the numbers of its base were kept."""
        return cell.base is not None and (self.root / cell.base.name / _AGAIN).is_file()

    def finished(self, cell: Cell) -> Measured | None:
        """What was measured earlier, or None; RunError where the folder holds something else."""
        path = self.root / cell.name / _FILE
        if not path.is_file():
            return None
        try:
            record = read_json(path).record
            format_, settings, numbers, made = (record[key] for key in ("format", "settings", "numbers", "made"))
        except (RunError, KeyError) as error:
            raise _refused(path, error, "a cell of this program") from error
        wanted = json.loads(json.dumps(cell.settings))
        if (format_, settings) != (FORMAT, wanted):
            raise _refused(path, "a cell made under other settings", f"the settings with digest {cell.digest[:12]}")
        return Measured(cell, numbers, made)

    def entry(self, name: str) -> dict[str, Any] | None:
        """A finished cell as a results file has it (``Measured.as_dict``), whatever its settings; None where there is none."""
        path = self.root / name / _FILE
        if not path.is_file():
            return None
        record = read_json(path).record
        return {"name": name, **record["settings"], "numbers": record["numbers"], "made": record["made"]}

    def keep(self, measured: Measured) -> None:
        """Writes a finished cell, in one step: from now on its numbers are those of the run beside them."""
        folder = self.root / measured.cell.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _AGAIN).unlink(missing_ok=True)  # first: what is not finished is measured again
        record = {"settings": measured.cell.settings, "numbers": measured.numbers, "made": measured.made}
        write_json(folder / _FILE, {"format": FORMAT, **record})

    def forget(self, cell: Cell) -> None:
        """Removes a cell with its run, and the cell that the run was trained for."""
        if cell.base is not None:
            self.forget(cell.base)
        folder = self.root / cell.name
        (folder / _FILE).unlink(missing_ok=True)  # first, so that a kill leaves nothing that looks finished
        shutil.rmtree(folder, ignore_errors=True)


def is_trained(folder: Path) -> bool:
    """Whether a finished run lies there; RunError where its record is broken."""
    return RunLayout(folder).run_json.is_file() and read_run_json(folder).get("state") == COMPLETE


def _refused(path: Path, got: object, wanted: str) -> RunError:
    return RunError(
        "a cell on the disk is not the one that is asked for",
        where=str(path),
        got=got,
        wanted=wanted,
        fix="--overwrite makes it again; or choose another --out",
    )
