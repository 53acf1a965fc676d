"""What an audit of certificates found, as it lies on the disk, and whether alpha explains it.

Guarantees
    ``refuted`` is false for true certificates except with probability at most ``REFUTED_BELOW``. Proof: each input's
    certificate fails with probability at most alpha, an abstention never does, and every flip inside a radius shows that one
    failed (except with ``FALSE_FLIPS`` for all of them). With noise of each input's own the failures are independent, so that
    their number is at most binomial in distribution; with shared noise they may coincide, only the mean is bounded, and
    Markov's inequality takes the place of the tail (it cannot go below alpha: at alpha 0.001 flips under shared noise are
    shown, and counted, but can refute nothing).
    The trials are all inputs that were certified, not those that got an answer: given that an input near the boundary got an
    answer at all, it may be wrong with any probability.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from scipy.special import betainc

from twinproof.auditing.certificate_judge import FALSE_FLIPS
from twinproof.auditing.certificate_search import AttackBudget
from twinproof.auditing.interval_verdict import is_interval_audit
from twinproof.certification.method import MADE, NETWORK
from twinproof.guarantee import round_down, round_up
from twinproof.runs.layout import FORMAT, refuse_unknown_format
from twinproof.runs.reading import CLOSED, Count, Digest, Length, Share, read_json
from twinproof.runs.records import AUDITS, WorkSettings, evidence, json_file, same_names, unfolded

REFUTED_BELOW = 1e-3
BINOMIAL, MARKOV = "binomial", "markov"
HELD, UNDECIDED, FLIPPED = "held", "undecided", "flipped"
_SECTION = "certificates"
_FURTHEST = 1e4  # radii: the report counts in eighths of one


@dataclass(frozen=True, kw_only=True)
class AuditSettings(WorkSettings):
    """What all attacks of an audit share; ``of`` names the certification."""

    of: str
    certificates_sha256: Digest
    settings_sha256: Digest
    norm: str
    attackable: Count
    within: Length
    outward: Annotated[float, Field(ge=0, le=_FURTHEST)]
    budget: AttackBudget
    false_flips: Share


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
    """What the attacks say of all certificates together."""

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
    """An audit of certificates, by its name; ``verdict`` is None only in unfinished audits of format 1 and 2."""

    name: str
    settings: AuditSettings
    attacked: tuple[AttackedCertificate, ...]
    verdict: Verdict | None = None

    def as_dict(self) -> dict[str, Any]:
        """The section ``certificates`` of the file."""
        verdict = None if self.verdict is None else {**asdict(self.verdict), "verdict": self.verdict.words}
        return {**asdict(self.settings), "attacked": [asdict(one) for one in self.attacked], "verdict": verdict}

    def content(self) -> bytes:
        return json_file({"format": FORMAT, _SECTION: self.as_dict()})


@dataclass(frozen=True, kw_only=True)
class _Section(AuditSettings):
    """The audit of the certificates as the file has it: settings, findings and verdict beside each other."""

    attacked: tuple[AttackedCertificate, ...]
    verdict: Verdict | None


class _AuditFile(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")

    certificates: dict[str, Any]


_FORMER = {
    "budget": same_names("steps", "draws", "restarts", "directions", "rounds", "screen", "votes"),
    "network": NETWORK,
    "made": MADE,
}


def read_audit(path: Path, name: str) -> CertificateAudit:
    found = read_json(path, fix="move the file away and audit again")
    refuse_unknown_format(path, found.record.get("format"))
    section = found.typed(_AuditFile).certificates
    inner = unfolded(found.inside(_SECTION, section), _FORMER, of=name, classes=0).typed(_Section)
    settings = AuditSettings(**{field.name: getattr(inner, field.name) for field in fields(AuditSettings)})
    return CertificateAudit(name, settings, inner.attacked, inner.verdict)


def audits_of(root: str | Path) -> dict[str, CertificateAudit]:
    """Those of a run about randomized smoothing; ``interval_verdict`` has the deterministic ones."""
    found = {name: path for name, path in evidence(Path(root), AUDITS).items() if not is_interval_audit(path)}
    return {name: read_audit(path, name) for name, path in found.items()}


def explained_by_chance(flips: int, inputs: int, alpha: float, *, shared_noise: bool) -> float:
    """The largest probability of at least ``flips`` failures among ``inputs`` true certificates."""
    if flips == 0:
        return 1.0
    if shared_noise:
        return min(1.0, inputs * alpha / flips)
    return float(betainc(flips, inputs - flips + 1, alpha))


def nothing_inside(attacked: Sequence[AttackedCertificate], levels: int) -> int:
    """How many of the certificates hold no storable input but their own: only a second look at that could contradict them.

    In every norm the nearest other input is one level of one coordinate away.
    """
    return sum(one.radius * levels <= 1 for one in attacked)


def verdict_of(attacked: Sequence[AttackedCertificate], inputs: int, alpha: float, *, shared_noise: bool) -> Verdict:
    """The attacks on the certificates of ``inputs`` inputs, abstentions counted among them, in one record."""
    flips = sum(one.verdict == FLIPPED for one in attacked)
    chance = explained_by_chance(flips, inputs, alpha, shared_noise=shared_noise)
    ratios = [one.flip.ratio for one in attacked if one.flip is not None]
    return Verdict(
        inputs=inputs,
        attacked=len(attacked),
        flips=flips,
        undecided=sum(one.verdict == UNDECIDED for one in attacked),
        alpha=alpha,
        expected=round_up(inputs * alpha),
        bound=MARKOV if shared_noise else BINOMIAL,
        probability=chance,
        refuted=flips > 0 and chance + FALSE_FLIPS < REFUTED_BELOW,
        closest=min(ratios, default=None),
        median=round_down(statistics.median(ratios)) if ratios else None,
        beyond_reach=len(attacked) - len(ratios),
    )
