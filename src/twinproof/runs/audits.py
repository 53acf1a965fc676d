"""``audit.json``: what attacks on a run's certificates found, written as it is made (docs/formats/run.md)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from twinproof.errors import RunError
from twinproof.files import write_json
from twinproof.runs.layout import FORMAT, read_run_json, refuse_unknown_format
from twinproof.runs.record import write_run_json

AUDIT_JSON = "audit.json"
SECTION = "certificates"
ATTACKING, COMPLETE = "attacking", "complete"
HELD, UNDECIDED, FLIPPED = "held", "undecided", "flipped"


@dataclass(frozen=True)
class AuditSettings:
    """What all attacks of an audit share; see docs/formats/run.md for each field."""

    certificates_sha256: str
    settings_sha256: str
    model_sha256: str
    norm: str
    inputs: int
    attackable: int
    within: float
    outward: float
    steps: int
    draws: int
    restarts: int
    directions: int
    rounds: int
    screen: int
    votes: int
    false_flips: float
    key: str
    form: str
    arithmetic: str
    device: str
    versions: dict[str, str]
    created: str
    seconds: float
    state: str


@dataclass(frozen=True)
class Flip:
    """A storable input at which another class is proven to win: ``votes`` of ``draws`` fresh draws fell on ``prediction``.

    ``distance`` is its distance to the certified input in the certificate's norm, ``ratio`` that over the radius, rounded
    down. ``found_by`` names the search. ``stored`` holds the input itself, in levels, where it contradicts the certificate.
    """

    distance: float
    ratio: float
    prediction: int
    votes: int
    draws: int
    found_by: str
    stored: tuple[int, ...] | None = None


@dataclass(frozen=True)
class AttackedCertificate:
    """One certificate after the attacks: its verdict, and the closest flip that was proven, inside the radius or beyond it."""

    index: int
    prediction: int
    radius: float
    verdict: str
    flip: Flip | None = None


@dataclass(frozen=True)
class Verdict:
    """What the attacks say of all certificates together (``twinproof.audit.certificate_verdict``)."""

    inputs: int
    attacked: int
    flips: int
    undecided: int
    alpha: float
    expected: float
    bound: str
    probability: float
    refuted: bool
    closest: float | None
    median: float | None
    beyond_reach: int

    @property
    def words(self) -> str:
        """``refuted``, ``not refuted`` or ``nothing to attack``."""
        if not self.attacked:
            return "nothing to attack"
        return "refuted" if self.refuted else "not refuted"


@dataclass(frozen=True)
class CertificateAudit:
    """The audit of a run's certificates; ``verdict`` is None until it is complete."""

    settings: AuditSettings
    attacked: tuple[AttackedCertificate, ...]
    verdict: Verdict | None = None

    def as_dict(self) -> dict[str, Any]:
        """The section ``certificates`` of ``audit.json``."""
        verdict = None if self.verdict is None else {**asdict(self.verdict), "verdict": self.verdict.words}
        return {**asdict(self.settings), "attacked": [asdict(one) for one in self.attacked], "verdict": verdict}


def write_audit(root: Path, audit: CertificateAudit) -> None:
    """Replaces the audit of the certificates in one step; other sections of the file stay."""
    others = {name: section for name, section in (_content(root) or {}).items() if name not in ("format", SECTION)}
    write_json(root / AUDIT_JSON, {"format": FORMAT, **others, SECTION: audit.as_dict()})


def read_audit(root: Path) -> CertificateAudit | None:
    """The audit of the certificates, or None where there was none; a broken file is an error."""
    section = (_content(root) or {}).get(SECTION)
    if section is None:
        return None
    try:
        settings = AuditSettings(**{field.name: section[field.name] for field in fields(AuditSettings)})
        attacked = tuple(_attacked(record) for record in section["attacked"])
        verdict = section["verdict"]
        known = None if verdict is None else Verdict(**{field.name: verdict[field.name] for field in fields(Verdict)})
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(root, error) from error
    return CertificateAudit(settings, attacked, known)


def unbind_audit(root: Path) -> None:
    """Takes the digest of ``audit.json`` out of ``run.json``: what is being made anew is bound when it is complete."""
    record = read_run_json(root)
    record["files"] = {name: entry for name, entry in record.get("files", {}).items() if name != AUDIT_JSON}
    write_run_json(root, record)


def _attacked(record: dict[str, Any]) -> AttackedCertificate:
    flip = record["flip"]
    if flip is not None:
        flip = Flip(**{**flip, "stored": None if flip["stored"] is None else tuple(flip["stored"])})
    return AttackedCertificate(**{**record, "flip": flip})


def _content(root: Path) -> dict[str, Any] | None:
    path = root / AUDIT_JSON
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _broken(root, error) from error
    if not isinstance(record, dict):
        raise _broken(root, type(record).__name__)
    refuse_unknown_format(path, record.get("format"))
    return record


def _broken(root: Path, got: object) -> RunError:
    return RunError(
        "audit.json cannot be read",
        where=str(root / AUDIT_JSON),
        got=got,
        wanted="the format of docs/formats/run.md",
        fix="move the file away and audit again",
    )
