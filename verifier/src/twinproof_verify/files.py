"""The files of a run: which may be there, that each has the digest in run.json, and that no secret stayed behind."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twinproof_verify.evidence import Evidence, RunFolder, sha256, shown
from twinproof_verify.findings import Problem
from twinproof_verify.models import Digest, Record, sound

RUN_JSON, MODEL, LEDGER, METRICS = "run.json", "model.safetensors", "ledger.jsonl", "metrics.jsonl"
CERTIFICATES, ATTACKS, AUDIT = map(Evidence.of, ("certificates", "attacks", "audit"))
CERTIFICATE_FILES = (CERTIFICATES.json, CERTIFICATES.csv)
ATTACK_FILES = (ATTACKS.json, ATTACKS.csv, ATTACKS.tensors)
PRIVATE, PRIVATE_MODE = "private", 0o700

_BOUND = {MODEL, LEDGER, METRICS, *CERTIFICATE_FILES, *ATTACK_FILES, AUDIT.json}
_REPORT = re.compile(r"report\.[a-z]+", re.ASCII)
# How their names begin: a killed writer may have left a "key.part" beside them.
_SECRETS = ("key", "checkpoint")


class _Entry(Record):
    sha256: Digest


def digest_problems(folder: RunFolder, run: dict[str, Any]) -> Iterator[Problem]:
    """Every entry of ``files`` against the bytes on the disk, and every file that must have an entry."""
    files = run.get("files")
    if not isinstance(files, dict):
        yield Problem(RUN_JSON, "files is not an object", shown(files), "name -> {sha256}")
        files = {}
    for name, entry in files.items():
        yield from _entry_problems(folder, name, entry)
    groups = (CERTIFICATE_FILES, ATTACK_FILES)
    together = {name for group in groups if any(one in folder.names for one in group) for name in group}
    for name in sorted({MODEL, LEDGER, METRICS} | together | (_BOUND & set(folder.names))):
        if name not in files:
            yield Problem(name, "run.json holds no digest of this file", "no entry in files", "its SHA-256")
            content = folder.content(name)
            if isinstance(content, Problem):
                yield content


def _entry_problems(folder: RunFolder, name: str, entry: object) -> Iterator[Problem]:
    if name not in _BOUND and not _REPORT.fullmatch(name):
        # Never opened: the name could lead anywhere on the machine of whoever checks the run.
        yield Problem(RUN_JSON, "files holds a name that no file of a run has", shown(name), "a name of docs/formats/run.md")
        return
    stated = sound(_Entry, entry)
    if stated is None:
        yield Problem(RUN_JSON, f"files: {name} has no usable digest", shown(entry), '{"sha256": 64 hexadecimal digits}')
    content = folder.content(name)
    if isinstance(content, Problem):
        yield content
    elif stated is not None and sha256(content) != stated.sha256:
        yield Problem(name, "the file is not the one that run.json binds", sha256(content), stated.sha256)


def unexpected_problems(folder: RunFolder) -> Iterator[Problem]:
    """What lies in the run but belongs to no part of the format: a release would carry it along."""
    for name in folder.names:
        if name in (RUN_JSON, PRIVATE) or name in _BOUND or _is_leftover(folder, name):
            continue
        if not _REPORT.fullmatch(name):
            yield Problem(shown(name), "this file is not part of a run", "an unknown name", "the names of docs/formats/run.md")
        elif not stat.S_ISREG(folder.mode(name)):
            yield Problem(shown(name), "this is not a regular file", "a link, folder or device", "a file")


def left_aside(folder: RunFolder) -> Iterator[str]:
    """Files that are not evidence: half-written ones of a killed command, and reports for people."""
    for name in folder.names:
        if _is_leftover(folder, name):
            yield f"{name}, which an interrupted command left behind: it can be deleted"
        elif _REPORT.fullmatch(name):
            yield f"{name}: a report is not evidence"


def _is_leftover(folder: RunFolder, name: str) -> bool:
    whole = name.removesuffix(".part")
    known = whole == RUN_JSON or whole in _BOUND or _REPORT.fullmatch(whole) is not None
    return whole != name and known and stat.S_ISREG(folder.mode(name))


def private_problems(folder: RunFolder, *, complete: bool) -> Iterator[Problem]:
    """The private folder: closed to others, and without key and checkpoint once training has ended. A release lacks it."""
    if PRIVATE not in folder.names:
        return
    mode = folder.mode(PRIVATE)
    if not stat.S_ISDIR(mode):
        yield Problem(PRIVATE, "private is not a folder", stat.filemode(mode), "a folder, not a link")
        return
    if os.name == "posix" and stat.S_IMODE(mode) != PRIVATE_MODE:
        yield Problem(PRIVATE, "others may look into the private folder", oct(stat.S_IMODE(mode)), oct(PRIVATE_MODE))
    if complete:
        yield from _secret_problems(folder.root / PRIVATE)


def _secret_problems(path: Path) -> Iterator[Problem]:
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        yield Problem(PRIVATE, "the private folder cannot be read", shown(str(error)), "a folder that its owner can read")
        return
    for name in names:
        if name.startswith(_SECRETS):
            what = "a secret of the training was left behind: whoever has it can undo the noise"
            yield Problem(f"{PRIVATE}/{shown(name)}", what, "the file exists", "gone when the run is complete")
