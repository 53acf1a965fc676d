"""Unfinished attacks of a run: kept in its private folder, gone on with, refused, or replaced, and removed when done.

The run itself stays as it was until everything is made, so that a killed attack leaves a run that still verifies.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from twinproof.errors import RunError
from twinproof.evaluation.protocols import Entry
from twinproof.files import LARGEST_TABLE, make_folder_below, read_bounded, write_atomic, write_json
from twinproof.runs.attacks import (
    ATTACKS_JSON,
    AttackLine,
    AttackSettings,
    format_lines,
    is_complete,
    parse_lines,
    read_attack_settings,
)
from twinproof.runs.layout import RunLayout
from twinproof.runs.private_files import create_private_folder

_FOLDER, _PLAN = "attacks", "plan.json"
_ALWAYS_FREE = {"state", "created", "seconds", "form"}


@dataclass(frozen=True)
class AttackWork:
    """The folder of unfinished attacks."""

    root: Path

    @classmethod
    def of(cls, run: Path) -> AttackWork:
        """The one of a run."""
        return cls(RunLayout(run).private / _FOLDER)

    @property
    def plan(self) -> Path:
        """The settings that the work was begun with."""
        return self.root / _PLAN

    def crafted(self, entry: Entry) -> Path:
        """The folder for the attacked inputs of ``entry``, in a folder that is there."""
        make_folder_below(self.root, self.root / entry.name)
        return self.root / entry.name / "inputs"

    def judged(self, entry: Entry, first: int) -> list[AttackLine] | None:
        """The lines of a batch that was judged before, or None."""
        path = self._judged(entry, first)
        return parse_lines(read_bounded(path, LARGEST_TABLE), path) if path.is_file() else None

    def keep_judged(self, entry: Entry, first: int, lines: list[AttackLine]) -> None:
        """Makes the lines of a batch durable."""
        path = self._judged(entry, first)
        make_folder_below(self.root, path.parent)
        write_atomic(path, format_lines(lines).encode())

    def begin(self, settings: AttackSettings) -> None:
        """Makes the folder, with the settings in it."""
        create_private_folder(self.root.parent)
        self.root.mkdir()
        write_json(self.plan, settings.as_dict())

    def remove(self) -> None:
        """Forgets the work; the settings go first, so that a kill leaves nothing that could be gone on with."""
        self.plan.unlink(missing_ok=True)
        shutil.rmtree(self.root, ignore_errors=True)

    def _judged(self, entry: Entry, first: int) -> Path:
        return self.root / entry.name / f"judged-{first:09d}.csv"


def earlier_attacks(run: Path) -> AttackSettings | None:
    """The settings of unfinished attacks of a run, else those of finished ones, else None."""
    for path in (AttackWork.of(run).plan, run / ATTACKS_JSON):
        found = read_attack_settings(path)
        if found is not None:
            return found
    return None


def take_up(run: Path, wanted: AttackSettings, *, own_key: bool, overwrite: bool) -> AttackSettings:
    """The settings to go on with: earlier ones where they are the same, else ``wanted``, with a new folder for its work.

    Guarantees
        Attacks made under other settings are never counted as done. Without ``overwrite`` they are refused and nothing is
        touched; with it, finished ones stay until the new ones are complete.
    """
    work = AttackWork.of(run)
    earlier = None if overwrite else earlier_attacks(run)
    if earlier is not None:
        _refuse_differences(run, earlier, wanted, own_key=own_key)
        return earlier
    work.remove()
    work.begin(wanted)
    return wanted


def _refuse_differences(run: Path, earlier: AttackSettings, wanted: AttackSettings, *, own_key: bool) -> None:
    free = _ALWAYS_FREE | (set() if own_key else {"key"})
    same_kind = earlier.device.partition(":")[0] == wanted.device.partition(":")[0]
    if is_complete(earlier):
        free |= {"device", "versions"}
    elif same_kind:
        free |= {"device"}
    old, new = asdict(earlier), asdict(wanted)
    different = [name for name in old if name not in free and old[name] != new[name]]
    if different:
        raise RunError(
            "this run has attacks with other settings",
            where=str(run),
            got=", ".join(f"{name} {old[name]}" for name in different),
            wanted=", ".join(f"{name} {new[name]}" for name in different),
            fix="--overwrite replaces them; or copy the run first",
        )
