"""``audit.json``: what attacks on a run's certificates found, written as it is made (docs/formats/run.md)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from twinproof.files import write_json
from twinproof.runs.layout import FORMAT, read_run_json, refuse_unknown_format, write_run_json
from twinproof.runs.reading import CLOSED, Count, Digest, JsonObject, Key, Length, Share, read_json

AUDIT_JSON = "audit.json"
SECTION = "certificates"
_FURTHEST = 1e4  # radii: the report counts in eighths of one
ATTACKING, COMPLETE = "attacking", "complete"
HELD, UNDECIDED, FLIPPED = "held", "undecided", "flipped"


@dataclass(frozen=True)
class AuditSettings:
    """What all attacks of an audit share; see docs/formats/run.md for each field."""

    certificates_sha256: Digest
    settings_sha256: Digest
    model_sha256: Digest
    norm: str
    inputs: Count
    attackable: Count
    within: Length
    outward: Annotated[float, Field(ge=0, le=_FURTHEST)]
    steps: Count
    draws: Count
    restarts: Count
    directions: Count
    rounds: Count
    screen: Count
    votes: Count
    false_flips: Share
    key: Key
    form: str
    arithmetic: str
    device: str
    versions: dict[str, str]
    created: str
    seconds: Length
    state: str


@dataclass(frozen=True)
class Flip:
    """A storable input at which another class is proven to win: ``votes`` of ``draws`` fresh draws fell on ``prediction``.

    ``distance`` is its distance to the certified input in the certificate's norm, ``ratio`` that over the radius, rounded
    down. ``found_by`` names the search. ``stored`` holds the input itself, in levels, where it contradicts the certificate.
    """

    __pydantic_config__: ClassVar = CLOSED

    distance: Length
    ratio: Length
    prediction: int
    votes: Count
    draws: Count
    found_by: str
    stored: tuple[int, ...] | None = None


@dataclass(frozen=True)
class AttackedCertificate:
    """One certificate after the attacks: its verdict, and the closest flip that was proven, inside the radius or beyond it."""

    __pydantic_config__: ClassVar = CLOSED

    index: Count
    prediction: int
    radius: Length
    verdict: str
    flip: Flip | None = None


@dataclass(frozen=True)
class Verdict:
    """What the attacks say of all certificates together (``twinproof.auditing.certificate_verdict``)."""

    inputs: Count
    attacked: Count
    flips: Count
    undecided: Count
    alpha: Share
    expected: Length
    bound: str
    probability: Share
    refuted: bool
    closest: Length | None
    median: Length | None
    beyond_reach: Count

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


@dataclass(frozen=True)
class _Section(AuditSettings):
    """The audit of the certificates as the file has it: settings, findings and verdict beside each other."""

    attacked: tuple[AttackedCertificate, ...]
    verdict: Verdict | None


class _AuditFile(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    certificates: _Section | None = None


def write_audit(root: Path, audit: CertificateAudit) -> None:
    """Replaces the audit of the certificates in one step; other sections of the file stay."""
    found = _content(root)
    others = {} if found is None else {name: one for name, one in found.record.items() if name not in ("format", SECTION)}
    write_json(root / AUDIT_JSON, {"format": FORMAT, **others, SECTION: audit.as_dict()})


def read_audit(root: Path) -> CertificateAudit | None:
    """The audit of the certificates, or None where there was none; a broken file is an error."""
    found = _content(root)
    section = None if found is None else found.typed(_AuditFile).certificates
    if section is None:
        return None
    settings = AuditSettings(**{field.name: getattr(section, field.name) for field in fields(AuditSettings)})
    return CertificateAudit(settings, section.attacked, section.verdict)


def unbind_audit(root: Path) -> None:
    """Takes the digest of ``audit.json`` out of ``run.json``: what is being made anew is bound when it is complete."""
    record = read_run_json(root)
    record["files"] = {name: entry for name, entry in record.get("files", {}).items() if name != AUDIT_JSON}
    write_run_json(root, record)


def _content(root: Path) -> JsonObject | None:
    path = root / AUDIT_JSON
    if not path.is_file():
        return None
    found = read_json(path, fix="move the file away and audit again")
    refuse_unknown_format(path, found.record.get("format"))
    return found
