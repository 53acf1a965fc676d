"""Writing ``run.json``: started before training, completed after it, extended by later commands."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from twinproof.extensions import Plugin
from twinproof.files import canonical_json, sha256_file, write_json
from twinproof.runs.layout import FORMAT, RunLayout, read_run_json

TRAINING, COMPLETE = "training", "complete"


def config_digest(config: dict[str, Any]) -> str:
    """The digest that binds a ledger and a checkpoint to their settings."""
    return hashlib.sha256(canonical_json(config).encode()).hexdigest()


def write_run_json(root: Path, record: dict[str, Any]) -> None:
    """Replaces ``run.json`` in one step. A ``record`` that was read keeps the format it has, a new one gets today's."""
    write_json(RunLayout(root).run_json, {"format": FORMAT, **record})


def plugins_entry(root: Path, plugins: Iterable[Plugin | None]) -> dict[str, Any]:
    """The entry ``plugins`` with these added: what the run uses from outside of this package; nothing where it uses nothing."""
    known: list[dict[str, str]] = read_run_json(root).get("plugins", [])
    added = [plugin.as_dict() for plugin in plugins if plugin is not None]
    return {"plugins": known + [one for one in added if one not in known]} if known or added else {}


def file_digests(root: Path, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """The entry ``files`` for those names that exist."""
    return {name: {"sha256": sha256_file(root / name)} for name in names if (root / name).is_file()}


def update_run_json(root: Path, *, files: Iterable[str] = (), **changes: Any) -> dict[str, Any]:
    """Changes some entries of ``run.json`` and renews the digests of ``files``; returns the new content.

    One of ``files`` that is no longer there loses its digest.
    """
    record, names = read_run_json(root), tuple(files)
    record.update(changes)
    others = {name: entry for name, entry in record.get("files", {}).items() if name not in names}
    record["files"] = {**others, **file_digests(root, names)}
    write_run_json(root, record)
    return read_run_json(root)
