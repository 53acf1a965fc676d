"""A run directory: where things lie, what ``run.json`` must look like, writing it, and one process at a time."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from twinproof import __version__
from twinproof.errors import RunError
from twinproof.extensions import Plugin
from twinproof.files import canonical_json, sha256_file, write_json
from twinproof.runs.reading import FormerRunFile, RunFile, broken, read_json, shown

Needs = Mapping[str, Sequence[str]]
"""Keys that must be there, by the section that they stand in."""
STARTED: Needs = {
    "": ("state", "created", "config", "data", "device"),
    "config": ("model", "data"),
    "data": ("shape", "classes"),
}
"""What a run needs to go on with its training."""
NETWORK: Needs = {"": ("config", "data"), "config": ("model", "width"), "data": ("shape", "classes")}
"""What its network is built from."""
DATA: Needs = {"": ("config", "data"), "config": ("data",), "data": ("shape", "classes", "levels", "test_records")}
"""What its data are recognised by."""
GUARANTEES: Needs = {"": ("guarantees",), "guarantees": ("privacy", "robustness")}
"""What is promised of a complete run."""
ANSWER: Needs = {"": ("accuracy",)}
"""What is said of a training that ended."""


def missing_keys(record: Mapping[str, Any], wanted: Needs) -> list[str]:
    """Those of the ``wanted`` keys that ``record``, which is a ``RunFile``, does not have."""
    missing = []
    for section, names in wanted.items():
        found: Mapping[str, Any] = record
        for part in section.split(".") if section else ():
            found = found.get(part) or {}
        absent = [name for name in names if name not in found or (not section and found[name] is None)]
        missing += [f"{section}.{name}".lstrip(".") for name in absent]
    return missing


FORMAT = 3
"""The format that is written now (docs/formats/run.md)."""
FORMATS = (1, 2, 3)
"""The formats that are read."""


class _At:
    """The path of a file below the run's directory."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, layout: RunLayout, _: object = None) -> Path:
        return layout.root / self._name


@dataclass(frozen=True)
class RunLayout:
    """The paths of one run; nothing is created or read by making this record."""

    root: Path

    run_json = _At("run.json")  # what was run and what is promised
    model = _At("model.safetensors")
    ledger = _At("ledger.jsonl")  # privacy-spending events
    metrics = _At("metrics.jsonl")  # progress on the test set
    report_html, report_json = _At("report.html"), _At("report.json")
    private = _At("private")  # what depends on the training records and never leaves


def read_run_json(root: Path, needs: Needs | None = None) -> dict[str, Any]:
    """The content of ``run.json``; a clear error where ``root`` is no run or the file is broken.

    ``needs`` are the keys that must be there (``STARTED`` and others).
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
    found.typed(RunFile if found.record["format"] == FORMAT else FormerRunFile)
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


TRAINING, COMPLETE = "training", "complete"


def config_digest(config: dict[str, Any]) -> str:
    """The digest that binds a ledger and a checkpoint to their settings."""
    return hashlib.sha256(canonical_json(config).encode()).hexdigest()


def write_run_json(root: Path, record: dict[str, Any]) -> None:
    """Replaces ``run.json`` in one step. A ``record`` that was read keeps the format it has, a new one gets today's."""
    write_json(RunLayout(root).run_json, {"format": FORMAT, **record})


def plugins_entry(record: Mapping[str, Any], plugins: Iterable[Plugin | None]) -> dict[str, Any]:
    """The entry ``plugins`` of ``run.json`` with these added: what the run uses from outside of this package."""
    known: list[dict[str, str]] = record.get("plugins", [])
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


@contextmanager
def exclusive(root: Path, *, waits: bool = False) -> Iterator[None]:
    """Holds the run directory for this process; the system lets go of it when the process ends, however it ends.

    While one process is inside, another one gets a ``RunError`` at once, or ``waits``. The lock lies on the directory itself,
    so that no file is left behind; a directory that vanishes ends the work as a fault of the system.
    """
    handle = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                "another process is working on this run",
                where=str(root),
                got="a directory that is locked",
                wanted="one process at a time",
                fix="wait for it to end",
            ) from error
        try:
            yield
        except RunError as error:
            _check_there(root, error)
            raise
        _check_there(root)
    finally:
        os.close(handle)


def _check_there(root: Path, error: RunError | None = None) -> None:
    if not root.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(root)) from error


_PACKAGES = ("torch", "numpy", "scipy", "dp-accounting", "safetensors")


def software_versions() -> dict[str, str]:
    """Versions of everything a result may depend on."""
    found = {"twinproof": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found


def utc_now() -> str:
    """The time, in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def create_private_folder(folder: Path) -> None:
    """Makes the folder with mode 0700, whatever the process's umask is."""
    folder.mkdir(mode=0o700, exist_ok=True)
    folder.chmod(0o700)
