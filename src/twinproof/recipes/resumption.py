"""What must hold before a directory is continued, and what a start that was killed may leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinproof.errors import RunError
from twinproof.privacy.ledger import Ledger
from twinproof.recipes.config import ResolvedConfig, TrainConfig
from twinproof.recipes.registry import find_recipe
from twinproof.recipes.stored_data import public_config
from twinproof.runs.layout import RunLayout, read_run_json
from twinproof.runs.private_files import WRITTEN_FIRST

_PART = ".part"  # what a killed writer leaves (twinproof.files.write_atomic)
_FREE_KINDS = ("open", "gaussian")


def refuse_started(root: Path) -> None:
    """Refuses to start in a directory that holds a run, or anything else."""
    if RunLayout(root).run_json.is_file():
        raise RunError(
            "there is a run in this directory already",
            where=str(root),
            got=f"state {read_run_json(root).get('state')!r}",
            wanted="a new or empty directory",
            fix="choose another directory, or continue this run with --resume",
        )
    if root.is_dir() and any(root.iterdir()):
        raise RunError("the directory is not empty", where=str(root), got="files in it", wanted="a new or empty directory")


def refuse_other_settings(root: Path, given: TrainConfig, stored: dict[str, Any]) -> None:
    """Refuses settings that are not the run's. One that is left open (None) agrees with whatever was decided for it."""
    other = [key for key, value in public_config(given).items() if not _agrees(key, value, stored.get(key, _default(key)))]
    if not find_recipe(given.recipe).private:  # it drops what was said about privacy
        other = [key for key in other if key not in ("epsilon", "noise_multiplier")]
    if other:
        raise RunError(
            "these are not the settings the run was started with",
            where=str(root),
            got=f"other settings: {', '.join(other)}",
            wanted="the settings in run.json",
            fix="resume without settings (they are read from the run), or start a new run",
        )


def _default(key: str) -> Any:
    """What a run means that was started before there was such a setting."""
    field = ResolvedConfig.model_fields.get(key)
    return None if field is None or field.is_required() else field.default


def _agrees(key: str, given: Any, stored: Any) -> bool:
    if key == "noise_layer" and isinstance(given, dict) and isinstance(stored, dict):
        return all(_agrees(f"{key}.{name}", value, stored.get(name)) for name, value in given.items())
    return given is None or given == stored


def load_ledger(layout: RunLayout, config_sha256: str) -> Ledger:
    """The run's ledger; refused where it is empty, was changed, or was opened for other settings."""
    ledger = Ledger.load(layout.ledger)
    first = ledger.entries[0] if ledger.entries else None
    if first is None or first.kind != "open" or first.body.get("config_sha256") != config_sha256:
        raise RunError(
            "the ledger was not opened for the settings in run.json",
            where=str(layout.ledger),
            got="no opening line" if first is None or first.kind != "open" else "a ledger of other settings",
            wanted="the ledger that the run was started with",
            fix="restore ledger.jsonl and run.json; a run whose records were changed cannot be continued",
        )
    return ledger


def refuse_older_ledger(ledger: Ledger, taken: int) -> None:
    """Refuses a ledger that announces fewer steps than the checkpoint has taken: going on would hide what was spent."""
    if ledger.reserved_steps < taken:
        raise RunError(
            "the ledger is older than the checkpoint",
            where="ledger.jsonl",
            got=f"{ledger.reserved_steps} steps announced",
            wanted=f"at least {taken}, which the checkpoint has taken",
            fix="restore the ledger; a run whose ledger was changed cannot be continued",
        )


def clear_stillborn(layout: RunLayout) -> None:
    """Removes what a start that was killed before ``run.json`` left; nothing had been spent on steps or shown to anybody.

    Guarantees
        Only files that such a start writes are removed. One that it does not write, a ledger that announces a step, or a
        ledger that cannot be read ends in an error, and nothing is touched.
    """
    ours = {layout.ledger.name, layout.run_json.name + _PART}
    private = {name + ending for name in WRITTEN_FIRST for ending in ("", _PART)}
    inner = list(layout.private.iterdir()) if layout.private.is_dir() else []
    outer = [path for path in layout.root.iterdir() if path != layout.private or not path.is_dir()]
    strangers = [path for path in outer if path.name not in ours or not path.is_file()]
    strangers += [path for path in inner if path.name not in private or not path.is_file()]
    if strangers:
        raise RunError(
            "the directory holds files that are not a run's",
            where=str(layout.root),
            got=", ".join(sorted(str(path.relative_to(layout.root)) for path in strangers)[:5]),
            wanted="an interrupted run, or a new or empty directory",
        )
    _refuse_spent(layout)
    for path in (*inner, *outer):
        path.unlink()
    if layout.private.is_dir():
        layout.private.rmdir()


def _refuse_spent(layout: RunLayout) -> None:
    # A kill may have cut even the first line short; then there is no entry yet.
    begun = layout.ledger.is_file() and b"\n" in layout.ledger.read_bytes()
    entries = Ledger.load(layout.ledger).entries if begun else []
    if any(entry.kind not in _FREE_KINDS for entry in entries):
        raise RunError(
            "the ledger counts steps, but run.json is missing",
            where=str(layout.root),
            got="a ledger of a run that had begun to train",
            wanted="its run.json beside it",
            fix="restore run.json, or start in a new directory and keep this ledger: what it counts was spent",
        )
