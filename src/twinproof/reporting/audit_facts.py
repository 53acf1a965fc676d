"""What a report says about attacks on a run's certificates: the audit on disk, and whether it is about these certificates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from twinproof.auditing.certificate_verdict import FLIPPED, AttackedCertificate, CertificateAudit, audits_of
from twinproof.certification.record import Certification
from twinproof.files import sha256_file

BINS_PER_RADIUS = 8


@dataclass(frozen=True)
class RatioCounts:
    """Closest changes of the answer by their distance in radii: inside the radius, beyond it, and none found at all."""

    edges: tuple[float, ...]
    inside: tuple[int, ...]
    beyond: tuple[int, ...]
    not_found: int


@dataclass(frozen=True)
class AuditFacts:
    """The audit of a run's certificates; ``current`` says whether it is about the certificates that the run holds now."""

    audit: CertificateAudit
    current: bool

    @property
    def refuted(self) -> bool:
        """Whether more certificates failed than chance explains."""
        return self.current and self.audit.verdict is not None and self.audit.verdict.refuted

    @property
    def flipped(self) -> list[AttackedCertificate]:
        """Certificates with another answer inside their radius."""
        return [one for one in self.audit.attacked if one.verdict == FLIPPED]

    def ratios(self) -> RatioCounts:
        """The histogram's numbers; the radius itself is an edge, and the last bin holds whatever lies further."""
        bins = max(1, math.ceil(self.audit.settings.outward * BINS_PER_RADIUS))
        inside, beyond, not_found = [0] * bins, [0] * bins, 0
        for one in self.audit.attacked:
            if one.flip is None:
                not_found += 1
                continue
            place = min(int(one.flip.ratio * BINS_PER_RADIUS), bins - 1)
            (inside if one.verdict == FLIPPED else beyond)[place] += 1
        return RatioCounts(tuple(edge / BINS_PER_RADIUS for edge in range(bins + 1)), tuple(inside), tuple(beyond), not_found)


def load_audit(root: Path, certification: Certification | None) -> AuditFacts | None:
    """The audit of the run in ``root``, or None where there is none; a RunError where its file is broken."""
    found = audits_of(root)
    audit = found.get(certification.name if certification else "") or next(iter(found.values()), None)
    if audit is None:
        return None
    path = None if certification is None else certification.csv
    current = path is not None and path.is_file() and sha256_file(path) == audit.settings.certificates_sha256
    return AuditFacts(audit, current=current)
