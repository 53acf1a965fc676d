"""The files of a run: which may be there, that each has the digest in run.json, and that no secret stayed behind."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from twinproof_verify.evidence import FOLDERS, RunFolder, sha256, shown
from twinproof_verify.findings import Problem
from twinproof_verify.models import NAME, Digest, Record, is_former, sound

RUN_JSON, MODEL, LEDGER, METRICS = "run.json", "model.safetensors", "ledger.jsonl", "metrics.jsonl"
CERTIFICATES, ATTACKS, AUDITS = FOLDERS
PRIVATE, PRIVATE_MODE = "private", 0o700

_ENDINGS = {CERTIFICATES: ("json", "csv"), ATTACKS: ("json", "csv", "safetensors"), AUDITS: ("json",)}
# The names before format 3, when a run held one of each kind.
_FORMER = {kind: f"{'audit' if kind == AUDITS else kind}." for kind in FOLDERS}
MOST_NAMES = 100
"""How many certifications, sets of attacks or audits of one run are checked; more are a problem."""
_REPORT = re.compile(r"report\.[a-z]+", re.ASCII)
# How their names begin: a killed writer may have left a "key.part" beside them.
_SECRETS = ("key", "checkpoint")


class Evidence(NamedTuple):
    """One certification, set of attacks or audit: its files, each a path in the run, and its ``name``.

    Before format 3 the name is None: there is one of each kind.
    """

    name: str | None
    files: tuple[str, ...]

    @classmethod
    def of(cls, kind: str, name: str | None = None) -> Evidence:
        stem = _FORMER[kind] if name is None else f"{kind}/{name}." if kind == AUDITS else f"{kind}/{name}/{kind}."
        return cls(name, tuple(stem + ending for ending in _ENDINGS[kind]))

    @property
    def json(self) -> str:
        """Settings, and what was found."""
        return self.files[0]

    @property
    def csv(self) -> str:
        """One line for each input."""
        return self.files[1]

    @property
    def tensors(self) -> str:
        """Attacked inputs."""
        return self.files[2]

    def titled(self, check: str) -> str:
        return check if self.name is None else f"{check} ({self.name})"


def evidence_of(folder: RunFolder, run: dict[str, Any], kind: str) -> tuple[Evidence, ...]:
    if is_former(run):
        only = Evidence.of(kind)
        return (only,) if set(only.files) & set(folder.names) else ()
    inside = (name.split("/")[1] for name in folder.names if name.startswith(f"{kind}/"))
    names = (name.removesuffix(".json") for name in inside if kind != AUDITS or name.endswith(".json"))
    return tuple(Evidence.of(kind, name) for name in sorted(set(names)) if NAME.fullmatch(name))[:MOST_NAMES]


def _place(name: str, run: dict[str, Any]) -> Literal["bound", "folder", "report", ""]:
    """What a path in a run is: a file whose digest stands in run.json, a folder of evidence, a report, or nothing of a run."""
    if name in (MODEL, LEDGER, METRICS):
        return "bound"
    if _REPORT.fullmatch(name):
        return "report"
    if is_former(run):
        return "bound" if any(name in Evidence.of(kind).files for kind in FOLDERS) else ""
    kind, _, rest = name.partition("/")
    if kind not in FOLDERS:
        return ""
    chosen = rest.removesuffix(".json") if kind == AUDITS else rest.partition("/")[0]
    if NAME.fullmatch(chosen) and name in Evidence.of(kind, chosen).files:
        return "bound"
    return "folder" if not rest or (kind != AUDITS and NAME.fullmatch(rest)) else ""


def digest_problems(folder: RunFolder, run: dict[str, Any]) -> Iterator[Problem]:
    """Every entry of ``files`` against the bytes on the disk, and every file that must have an entry."""
    files = run.get("files")
    if not isinstance(files, dict):
        yield Problem(RUN_JSON, "files is not an object", shown(files), "name -> {sha256}")
        files = {}
    for name, entry in files.items():
        yield from _entry_problems(folder, run, name, entry)
    evidence = {name for kind in FOLDERS for one in evidence_of(folder, run, kind) for name in one.files}
    for name in sorted({MODEL, LEDGER, METRICS} | evidence):
        if name not in files:
            yield Problem(name, "run.json holds no digest of this file", "no entry in files", "its SHA-256")
            content = folder.content(name)
            if isinstance(content, Problem):
                yield content


def _entry_problems(folder: RunFolder, run: dict[str, Any], name: str, entry: object) -> Iterator[Problem]:
    if _place(name, run) not in ("bound", "report"):
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


class _Entry(Record):
    sha256: Digest


def unexpected_problems(folder: RunFolder, run: dict[str, Any]) -> Iterator[Problem]:
    """What lies in the run but belongs to no part of the format: a release would carry it along."""
    for kind in FOLDERS:
        if len(evidence_of(folder, run, kind)) == MOST_NAMES:
            yield Problem(kind, "there is more than can be checked", f"{MOST_NAMES} names or more", f"fewer than {MOST_NAMES}")
    for name in folder.names:
        place = _place(name, run)
        if name in (RUN_JSON, PRIVATE) or place == "bound" or _is_leftover(folder, run, name):
            continue
        if place == "folder":
            if not stat.S_ISDIR(folder.mode(name)):
                yield Problem(shown(name), "this is not a folder", stat.filemode(folder.mode(name)), "a folder, not a link")
        elif place != "report":
            yield Problem(shown(name), "this file is not part of a run", "an unknown name", "the names of docs/formats/run.md")
        elif not stat.S_ISREG(folder.mode(name)):
            yield Problem(shown(name), "this is not a regular file", "a link, folder or device", "a file")


def left_aside(folder: RunFolder, run: dict[str, Any]) -> Iterator[str]:
    """Files that are not evidence: half-written ones of a killed command, and reports for people."""
    for name in folder.names:
        if _is_leftover(folder, run, name):
            yield f"{name}, which an interrupted command left behind: it can be deleted"
        elif _place(name, run) == "report":
            yield f"{name}: a report is not evidence"


def _is_leftover(folder: RunFolder, run: dict[str, Any], name: str) -> bool:
    whole = name.removesuffix(".part")
    known = whole == RUN_JSON or _place(whole, run) in ("bound", "report")
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
    try:
        names = sorted(entry.name for entry in (folder.root / PRIVATE).iterdir()) if complete else []
    except OSError as error:
        yield Problem(PRIVATE, "the private folder cannot be read", shown(str(error)), "a folder that its owner can read")
        return
    for name in (name for name in names if name.startswith(_SECRETS)):
        what = "a secret of the training was left behind: whoever has it can undo the noise"
        yield Problem(f"{PRIVATE}/{shown(name)}", what, "the file exists", "gone when the run is complete")
